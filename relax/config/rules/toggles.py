"""One rule a performance toggle, built from its declaration in `relax.config.toggles`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from relax.config.rules.base import Finding, RuleFunction, Severity, rule
from relax.config.rules.helpers import at_least
from relax.config.schema import RunConfig
from relax.config.toggles import TOGGLES, Toggle, value_at


def _rule_of(toggle: Toggle) -> RuleFunction:
    def requirements(config: RunConfig) -> Iterator[Finding]:
        if not toggle.enabled(config):
            return
        for condition in toggle.requires:
            if not condition.holds(config):
                found = value_at(config, condition.path)
                shown = found.value if isinstance(found, Enum) else found
                why = f"perf.{toggle.name} is on: {condition.why}"
                yield Finding(condition.path, shown, condition.required, why, condition.fix)

    requirements.__doc__ = f"What `perf.{toggle.name}` requires. {toggle.summary}"
    return requirements


for _toggle in TOGGLES.values():
    rule(f"perf.{_toggle.name}", f"perf.{_toggle.name}", *(c.path for c in _toggle.requires))(_rule_of(_toggle))


@rule("perf.publish_interval_range", "perf.publish_interval")
def publish_interval_range(config: RunConfig) -> Iterator[Finding]:
    """The publication interval counts rollouts."""
    yield from at_least("perf.publish_interval", config.perf.publish_interval, 1, "it counts rollouts")


@rule("perf.publish_cadence", "perf.publish_interval", "eval.interval", severity=Severity.warning)
def publish_cadence(config: RunConfig) -> Iterator[Finding]:
    """An evaluation needs fresh weights, so a cadence that is no multiple of the interval publishes more often."""
    interval, evaluation = config.perf.publish_interval, config.eval.interval
    if interval > 1 and evaluation is not None and evaluation >= 1 and config.eval.sets and evaluation % interval:
        cycle = range(interval * evaluation)
        times = sum((step + 1) % interval == 0 or (step + 1) % evaluation == 0 for step in cycle)
        yield Finding(
            "perf.publish_interval",
            interval,
            f"a divisor of eval.interval={evaluation}",
            f"weights will go out {times} times in {len(cycle)} rollouts instead of {len(cycle) // interval}",
            f"eval.interval={interval * max(1, round(evaluation / interval))}",
        )
