"""Small pieces that rules share."""

from __future__ import annotations

from collections.abc import Iterator

from relax.config.arch import effective_arch
from relax.config.rules.base import Finding
from relax.config.schema import ArchConfig, RunConfig


def arch_or_none(config: RunConfig) -> ArchConfig | None:
    """The architecture, or None when it cannot be told (the rule `model.folder` reports why)."""
    try:
        return effective_arch(config.model)
    except ValueError:
        return None


def at_least(path: str, value: float | None, minimum: float, why: str) -> Iterator[Finding]:
    """A finding when `value` is set and below `minimum`."""
    if value is not None and value < minimum:
        yield Finding(path, value, f"at least {minimum}", why, f"{path}={minimum}")


def within(
    path: str, value: float | None, low: float, high: float, why: str, *, default: float, open_low: bool = False
) -> Iterator[Finding]:
    """A finding when `value` is set and outside [low, high], or outside (low, high] with `open_low`."""
    if value is None:
        return
    if value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        yield Finding(path, value, f"in {bracket}{low}, {high}]", why, f"{path}={default}")


def world_size(config: RunConfig) -> int:
    """Trainer ranks."""
    p = config.parallelism
    return p.tensor * p.pipeline * p.context * (p.data or 1)


def divisors(number: int) -> str:
    """The divisors of a positive number, for messages."""
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
