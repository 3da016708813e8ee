"""Rules over the resolved config: one small module a topic. All violations are reported together."""

from __future__ import annotations

from relax.config.rules import (
    algorithm,
    batch,
    data,
    distill,
    mode,
    model,
    parallelism,
    rollout,
    toggles,
    tracking,
    train,
)
from relax.config.rules.base import RULES, Rule, Scope, Severity, Violation
from relax.config.schema import RunConfig

TOPICS = (model, parallelism, batch, algorithm, distill, toggles, mode, rollout, data, tracking, train)
"""The rule modules; importing them declares their rules."""


def check(config: RunConfig, *, scopes: tuple[Scope, ...] = tuple(Scope)) -> list[Violation]:
    """All violations of a resolved config, errors first, from the rules of `scopes` (all by default)."""
    found = [v for declared in RULES.values() if declared.scope in scopes for v in declared.violations(config)]
    return sorted(found, key=lambda v: v.severity is not Severity.error)


__all__ = ["RULES", "TOPICS", "Rule", "Scope", "Severity", "Violation", "check"]
