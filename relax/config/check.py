"""Compose → resolve → check, for the entry points."""

from __future__ import annotations

from relax.config.availability import unavailable
from relax.config.errors import ConfigError
from relax.config.resolve import Change, resolve
from relax.config.rules import Severity, Violation, check
from relax.config.schema import RunConfig


def resolve_and_check(config: RunConfig) -> tuple[RunConfig, list[Change], list[Violation]]:
    """The resolved config, its changes and the warnings.

    Raises:
        ConfigError: all errors of the rules and all parts that are not available yet, together.
    """
    resolved, changes = resolve(config)
    found = check(resolved)
    errors = [str(v) for v in found if v.severity is Severity.error]
    errors += [f"error: {line}" for line in unavailable(resolved)]
    if errors:
        raise ConfigError("\n".join(errors))
    return resolved, changes, found
