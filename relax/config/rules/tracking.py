"""Rules on trackers."""

from __future__ import annotations

import netrc
import os
from collections.abc import Iterator
from pathlib import Path

from relax.config.rules.base import Finding, Scope, rule
from relax.config.rules.helpers import at_least
from relax.config.schema import RunConfig, WandbMode


@rule("tracking.samples", "tracking.rollout_samples")
def samples(config: RunConfig) -> Iterator[Finding]:
    """The number of samples written counts samples."""
    yield from at_least("tracking.rollout_samples", config.tracking.rollout_samples, 0, "it counts samples; 0 is none")


@rule("tracking.wandb_key", "tracking.wandb.mode", scope=Scope.devices)
def wandb_key(config: RunConfig) -> Iterator[Finding]:
    """A live W&B run finds its key on this machine."""
    if config.tracking.wandb.mode is WandbMode.online and not _has_key():
        yield Finding(
            "tracking.wandb.mode",
            "online",
            "offline or disabled without a key",
            "neither WANDB_API_KEY nor ~/.netrc holds a key",
            "tracking.wandb.mode=offline (or run `wandb login`)",
        )


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path.home() / ".netrc"
    try:
        return any("wandb" in host for host in netrc.netrc(path).hosts) if path.is_file() else False
    except netrc.NetrcParseError:
        return False
