"""Rules on the optimizer, saving and the output folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from relax.config.rules.base import Finding, Scope, rule
from relax.config.rules.helpers import at_least
from relax.config.schema import LrScheduleKind, RunConfig


@rule("train.optimizer", "train")
def optimizer(config: RunConfig) -> Iterator[Finding]:
    """Learning rates and moments are in range."""
    train = config.train
    for path, value in (("train.lr", train.lr), ("train.sft.lr", train.sft.lr)):
        if not (value > 0 and math.isfinite(value)):
            yield Finding(path, value, "above 0 and finite", "otherwise nothing is learned", f"{path}=1e-6")
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= vars(train)[name] < 1:
            yield Finding(
                f"train.{name}",
                vars(train)[name],
                "in [0, 1)",
                "it is the decay of a moving average",
                f"train.{name}=0.9",
            )
    if train.adam_eps <= 0:
        yield Finding("train.adam_eps", train.adam_eps, "above 0", "it keeps the update finite", "train.adam_eps=1e-8")
    yield from at_least("train.weight_decay", train.weight_decay, 0, "a negative decay makes weights grow")
    yield from at_least("train.clip_grad", train.clip_grad, 0, "0 is no clipping")


@rule("train.lr_schedule", "train.lr_schedule", "train.lr")
def lr_schedule(config: RunConfig) -> Iterator[Finding]:
    """The schedule runs from its warm-up down to its floor."""
    schedule = config.train.lr_schedule
    yield from at_least("train.lr_schedule.warmup_steps", schedule.warmup_steps, 0, "it counts optimizer steps")
    if schedule.decay_steps is not None and schedule.decay_steps <= max(0, schedule.warmup_steps):
        yield Finding(
            "train.lr_schedule.decay_steps",
            schedule.decay_steps,
            f"above warmup_steps={schedule.warmup_steps} (or null)",
            "the decay starts after the warm-up",
            "train.lr_schedule.decay_steps=null",
        )
    if config.train.lr > 0 and not 0 <= schedule.min_lr <= config.train.lr:
        yield Finding(
            "train.lr_schedule.min_lr",
            schedule.min_lr,
            f"in [0, train.lr={config.train.lr}]",
            "it is the floor of the decay",
            "train.lr_schedule.min_lr=0",
        )
    if schedule.kind is LrScheduleKind.constant and schedule.decay_steps is not None:
        yield Finding(
            "train.lr_schedule.decay_steps",
            schedule.decay_steps,
            "null with kind=constant",
            "a constant rate has no decay",
            "train.lr_schedule.decay_steps=null",
        )


@rule("paths.output_dir", "paths.output_dir", scope=Scope.files)
def output_dir(config: RunConfig) -> Iterator[Finding]:
    """The run directory can be made."""
    path = Path(config.paths.output_dir).expanduser().absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        yield Finding(
            "paths.output_dir",
            config.paths.output_dir,
            "a folder that can be written",
            f"{existing} cannot be written by this user",
            "paths.output_dir=outputs",
        )
