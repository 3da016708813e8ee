"""The performance toggles: one declaration each, from which rules, docs/perf.md and tests are built.

A toggle says what it requires, which metrics it changes, what its evidence may treat as equal, and where its run-time
guard and its equivalence test are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from relax.config.schema import ImportanceKind, ModeKind, OldPolicy, OpdConfig, RunConfig


class Equality(Enum):
    """What a run with the toggle shares with a run without it."""

    bit = "bit-equal weights and metrics on the same rollouts"
    tolerance = "equal within float tolerance on the same rollouts"
    policy = "another (bounded) policy generates the rollouts: only outcomes are compared"


@dataclass(frozen=True)
class Condition:
    """Something a toggle requires of the rest of the config."""

    path: str
    holds: Callable[[RunConfig], bool]
    required: str
    why: str
    fix: str
    broken_by: tuple[str, ...]
    """Overrides of the default config under which the toggle breaks this condition alone (for tests and docs)."""


@dataclass(frozen=True)
class Toggle:
    """One performance toggle."""

    name: str
    """Name of its option in `conf/perf/` and, but for publish_interval, of its boolean field."""
    summary: str
    requires: tuple[Condition, ...]
    metrics: tuple[str, ...]
    """Metrics it adds or changes, beyond times."""
    equality: Equality
    guard: str
    """Run-time guard, by dotted path."""
    equivalence_test: str
    """Test that proves the equality, by path."""

    def enabled(self, config: RunConfig) -> bool:
        """Whether a config selects it."""
        value = vars(config.perf).get(self.name, False)
        return value is True or (not isinstance(value, bool) and value > 1)


def value_at(config: Any, path: str) -> Any:
    """The value at a dotted path of the config."""
    for name in path.split("."):
        config = config[name] if isinstance(config, dict) else vars(config)[name]
    return config


def _is(path: str, wanted: Any, *, why: str, broken_by: str) -> Condition:
    text = str(wanted).lower() if isinstance(wanted, (bool, int, float)) else wanted.value
    return Condition(
        path=path,
        holds=lambda config: value_at(config, path) == wanted,
        required=text,
        why=why,
        fix=f"{path}={text}",
        broken_by=(broken_by,),
    )


def _no_distillation(*, advantage_only: bool) -> Condition:
    def holds(config: RunConfig) -> bool:
        if not isinstance(config.algorithm, OpdConfig):
            return True
        distill = config.algorithm.distill
        return distill.advantage_coef == 0 and (advantage_only or distill.loss_coef == 0)

    if advantage_only:
        return Condition(
            path="algorithm.distill.advantage_coef",
            holds=holds,
            required="0",
            why="distillation as an advantage needs the old log-probs before the training forward",
            fix="algorithm.distill.advantage_coef=0",
            broken_by=("algorithm=opd", "teacher=frozen", "algorithm.distill.advantage_coef=1"),
        )
    return Condition(
        path="algorithm.name",
        holds=holds,
        required="grpo (no distillation term)",
        why="a sample with advantage zero still has a distillation gradient",
        fix="algorithm=grpo",
        broken_by=("algorithm=opd", "teacher=frozen"),
    )


_SYNCHRONOUS = _is(
    "mode.kind", ModeKind.colocate, why="it is proven for synchronous colocate only", broken_by="mode=hybrid"
)


def _single(name: str) -> Condition:
    return _is(
        f"parallelism.{name}", 1, why=f"it is proven without {name} parallelism", broken_by=f"parallelism.{name}=2"
    )


SKIP_ZERO_ADV = Toggle(
    name="skip_zero_adv",
    summary="No backward for micro-batches whose valid response tokens all have advantage exactly zero.",
    requires=(
        _SYNCHRONOUS,
        _single("pipeline"),
        _single("context"),
        _single("expert"),
        _is(
            "parallelism.overlap_grad_reduce",
            False,
            why="a rank that skips its last micro-batch would leave the others waiting in the all-reduce",
            broken_by="parallelism.overlap_grad_reduce=true",
        ),
        _is(
            "algorithm.loss.entropy_coef",
            0,
            why="the entropy term has a gradient where the advantage is zero",
            broken_by="algorithm.loss.entropy_coef=0.01",
        ),
        _is(
            "algorithm.kl.loss_coef",
            0,
            why="the KL term has a gradient where the advantage is zero",
            broken_by="algorithm.kl.loss_coef=0.01",
        ),
        _is(
            "algorithm.importance.kind",
            ImportanceKind.none,
            why="the combination with an importance correction is not proven",
            broken_by="algorithm.importance.kind=tis",
        ),
        _no_distillation(advantage_only=False),
    ),
    metrics=(
        "perf/zero_advantage_backward_fraction",
        "perf/zero_advantage_skipped_tokens",
        "perf/zero_advantage_micro_batch_fraction",
        "perf/actor_train_tflops",
    ),
    equality=Equality.bit,
    guard="relax.training.zero_advantage.check_skipped_loss",
    equivalence_test="tests/integration/test_toggle_skip_zero_adv.py",
)

PACK_ZERO_ADV = Toggle(
    name="pack_zero_adv",
    summary="Zero-advantage samples of a rank are packed apart: the skipped share equals the rank's zero share.",
    requires=(
        Condition(
            path="perf.skip_zero_adv",
            holds=lambda config: config.perf.skip_zero_adv,
            required="true",
            why="packing apart only helps when the zero part is skipped",
            fix="perf.skip_zero_adv=true",
            broken_by=(),
        ),
    ),
    metrics=("train/num_micro_batches", "perf/zero_advantage_backward_fraction"),
    equality=Equality.tolerance,
    guard="relax.data.micro_batches.plan_micro_batches",
    equivalence_test="tests/integration/test_toggle_pack_zero_adv.py",
)

REUSE_LOG_PROBS = Toggle(
    name="reuse_log_probs",
    summary="The training forward's detached log-probs are the old policy; the separate scoring pass disappears.",
    requires=(
        Condition(
            path="train.num_steps_per_rollout",
            holds=lambda config: config.train.num_steps_per_rollout in (None, 1),
            required="1",
            why="after the first optimizer step the policy is no longer the one that generated the rollout",
            fix="train.num_steps_per_rollout=1 train.global_batch_size=null",
            broken_by=("train.num_steps_per_rollout=2",),
        ),
        _is(
            "algorithm.old_policy",
            OldPolicy.trainer,
            why="with another source of old log-probs there is no pass to save",
            broken_by="algorithm.old_policy=rollout",
        ),
        _is(
            "algorithm.kl.penalty_coef",
            0,
            why="the penalty needs the old log-probs before the training forward",
            broken_by="algorithm.kl.penalty_coef=0.01",
        ),
        _no_distillation(advantage_only=True),
        Condition(
            path="debug.dump",
            holds=lambda config: config.debug.dump != "train",
            required="null or rollouts",
            why="a dump of training batches would lack the old log-probs",
            fix="debug.dump=rollouts",
            broken_by=("debug.dump=train",),
        ),
        Condition(
            path="mode.max_staleness",
            holds=lambda config: (
                config.mode.max_staleness == 0 or config.algorithm.importance.kind is not ImportanceKind.none
            ),
            required="0, or an importance correction",
            why="stale rollouts came from an older policy than the training forward's",
            fix="mode.max_staleness=0",
            broken_by=("mode=hybrid", "mode.max_staleness=1", "algorithm.old_policy=rollout"),
        ),
    ),
    metrics=("train/ppo_kl", "train/pg_clipfrac", "perf/log_probs_time"),
    equality=Equality.bit,
    guard="relax.training.worker.TrainWorker.train_step",
    equivalence_test="tests/integration/test_toggle_reuse_log_probs.py",
)


def _corrected(config: RunConfig) -> bool:
    algorithm = config.algorithm
    if algorithm.importance.kind is not ImportanceKind.none:
        return True
    if config.perf.reuse_log_probs:
        return False
    kept = algorithm.old_policy is OldPolicy.kept and config.mode.max_staleness == 0
    return algorithm.old_policy is OldPolicy.rollout or kept


PUBLISH_INTERVAL = Toggle(
    name="publish_interval",
    summary="Weights go to the rollout engines every N rollouts, when an evaluation is due, and after the last one.",
    requires=(
        Condition(
            path="perf.publish_interval",
            holds=_corrected,
            required="1, or an off-policy correction (importance, old_policy=rollout, old_policy=kept at staleness 0; "
            "under reuse_log_probs importance only)",
            why="between publications the engines generate with an older policy than the trainer's",
            fix="algorithm.importance.kind=tis algorithm.old_policy=trainer",
            broken_by=(),
        ),
    ),
    metrics=("perf/update_weights_time", "rollout/staleness"),
    equality=Equality.policy,
    guard="relax.runtime.publication.check_versions",
    equivalence_test="tests/integration/test_publish_interval.py",
)

TOGGLES: dict[str, Toggle] = {
    toggle.name: toggle for toggle in (SKIP_ZERO_ADV, PACK_ZERO_ADV, REUSE_LOG_PROBS, PUBLISH_INTERVAL)
}
"""All toggles by name; `baseline` is the empty option."""
