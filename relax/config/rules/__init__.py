"""Rules over the resolved config: one small module a topic. All violations are reported together."""

from __future__ import annotations

from relax.config.rules import algorithm, batch, data, model, parallelism, rollout, train
from relax.config.rules.base import RULES, Rule, Scope, Severity, Violation
from relax.config.schema import RunConfig

TOPICS = (model, parallelism, batch, algorithm, rollout, data, train)
"""The rule modules; importing them declares their rules."""


def check(config: RunConfig, *, scopes: tuple[Scope, ...] = (Scope.static, Scope.host)) -> list[Violation]:
    """All violations of a resolved config, errors first."""
    found = [v for declared in RULES.values() if declared.scope in scopes for v in declared.violations(config)]
    return sorted(found, key=lambda v: v.severity is not Severity.error)


__all__ = ["RULES", "TOPICS", "Rule", "Scope", "Severity", "Violation", "check"]
