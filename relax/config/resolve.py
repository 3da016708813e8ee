"""Derived values, computed once. Every change is recorded with its reason; nothing downstream changes the config.

What needs the data (rollouts in all, from epochs) is resolved at launch by `resolve_length`, into the same record.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol

from relax.config.schema import ModeKind, RunConfig
from relax.config.toggles import REUSE_LOG_PROBS


@dataclass(frozen=True)
class Change:
    """One derived value."""

    path: str
    before: Any
    after: Any
    because: str

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}, because {self.because}"


class Put(Protocol):
    """Sets a field and records the change."""

    def __call__(self, owner: Any, prefix: str, name: str, value: Any, because: str) -> None: ...


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def resolve(config: RunConfig) -> tuple[RunConfig, list[Change]]:
    """A resolved copy and what changed. Resolving twice changes nothing; values that break a rule are left alone."""
    resolved = copy.deepcopy(config)
    changes: list[Change] = []

    def put(owner: Any, prefix: str, name: str, value: Any, because: str) -> None:
        before = vars(owner)[name]
        if before != value:
            setattr(owner, name, value)
            changes.append(Change(f"{prefix}.{name}", before, value, because))

    train, rollout = resolved.train, resolved.rollout
    _resolve_devices(resolved, put)
    samples = rollout.batch_size * rollout.n_samples_per_prompt
    steps = train.num_steps_per_rollout
    divisor = 1 if steps is None else steps
    if train.global_batch_size is None and samples > 0 and divisor > 0 and samples % divisor == 0:
        because = f"{rollout.batch_size} prompts × {rollout.n_samples_per_prompt} samples ÷ {divisor} steps a rollout"
        put(train, "train", "global_batch_size", samples // divisor, because)
    size = train.global_batch_size
    if steps is None and size is not None and size > 0 and samples % size == 0:
        put(train, "train", "num_steps_per_rollout", samples // size, f"{samples} samples a rollout ÷ {size} a step")
    if train.log_probs_max_tokens_per_gpu is None:
        put(train, "train", "log_probs_max_tokens_per_gpu", train.max_tokens_per_gpu, "it follows max_tokens_per_gpu")
    _resolve_reference(resolved, put)
    _resolve_reuse(resolved, put)
    return resolved, changes


def _resolve_devices(config: RunConfig, put: Put) -> None:
    """Who gets which GPUs: in colocate mode trainer and engines share them, else each has its own."""
    gpus = config.launcher.num_gpus * config.launcher.num_nodes
    colocate = config.mode.kind is ModeKind.colocate
    parallelism, rollout = config.parallelism, config.rollout
    model_ranks = max(1, parallelism.tensor * parallelism.pipeline * parallelism.context)
    if rollout.num_gpus is None:
        free = gpus - config.teacher.num_gpus
        if colocate or gpus == 0:
            put(rollout, "rollout", "num_gpus", max(0, free), "engines share the trainer's GPUs in colocate mode")
        else:
            trainer = model_ranks * (parallelism.data or 1)
            put(rollout, "rollout", "num_gpus", max(0, free - trainer), f"{trainer} of {gpus} GPUs train")
    if rollout.num_engines is None:
        engines = max(1, (rollout.num_gpus or 0) // max(1, rollout.num_gpus_per_engine))
        put(rollout, "rollout", "num_engines", engines, "one engine on every num_gpus_per_engine GPUs")
    if parallelism.data is None:
        trainer_gpus = gpus if colocate else gpus - (rollout.num_gpus or 0) - config.teacher.num_gpus
        because = f"{trainer_gpus} GPUs ÷ {model_ranks} ranks a replica" if gpus else "the run has no GPUs"
        put(parallelism, "parallelism", "data", max(1, trainer_gpus // model_ranks), because)
    if config.mode.offload is None:
        offload = colocate and gpus > 0
        put(config.mode, "mode", "offload", offload, f"mode.kind={config.mode.kind.value} on {gpus} GPUs")


def _resolve_reference(config: RunConfig, put: Put) -> None:
    """Zero-KL clean-up: without a coefficient there is no reference role, no copy of its weights and no forward."""
    needed = needs_reference(config)
    because = (
        "a KL coefficient compares the policy with it"
        if needed
        else ("both KL coefficients are 0: no reference weights are kept and no reference forward runs")
    )
    put(config.algorithm.kl, "algorithm.kl", "reference", needed, because)


def _resolve_reuse(config: RunConfig, put: Put) -> None:
    """On-policy single-step runs in async mode reuse the training forward's log-probs without being asked."""
    on_policy = config.mode.kind is ModeKind("async") and config.mode.max_staleness == 0
    if on_policy and not config.perf.reuse_log_probs and all(c.holds(config) for c in REUSE_LOG_PROBS.requires):
        because = "mode=async at staleness 0 with one optimizer step a rollout is on-policy: no separate scoring pass"
        put(config.perf, "perf", "reuse_log_probs", True, because)


def needs_reference(config: RunConfig) -> bool:
    """Whether any term compares the policy with a frozen reference."""
    kl = config.algorithm.kl
    return kl.loss_coef != 0 or kl.penalty_coef != 0


def resolve_length(config: RunConfig, *, num_prompts: int) -> tuple[RunConfig, list[Change]]:
    """Rollouts in all, once the number of prompts is known.

    An explicit `num_rollout` without `num_epoch` may exceed one epoch; with `num_epoch` the smaller wins.
    """
    resolved = copy.deepcopy(config)
    train = resolved.train
    per_epoch = num_prompts / config.rollout.batch_size
    because = f"{num_prompts} prompts ÷ {config.rollout.batch_size} prompts a rollout"
    changes = [Change("num_rollout_per_epoch", None, round(per_epoch, 3), because)]
    if train.num_epoch is None:
        return resolved, changes
    from_epochs = max(1, int(per_epoch * train.num_epoch))
    if train.num_rollout is not None and train.num_rollout <= from_epochs:
        return resolved, changes
    before, train.num_rollout = train.num_rollout, from_epochs
    changes.append(
        Change("train.num_rollout", before, from_epochs, f"{train.num_epoch} epochs of {because}, in whole rollouts")
    )
    return resolved, changes
