"""The optimizer's side of a run, and what is saved and compared."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax.config.schema.enums import LrScheduleKind, Recompute


@dataclass
class LrScheduleConfig:
    """Learning rate over optimizer steps."""

    kind: LrScheduleKind = LrScheduleKind.constant
    """Shape after the warm-up."""
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up from 0."""
    decay_steps: int | None = None
    """Optimizer step at which `min_lr` is reached; the end of the run when absent."""
    min_lr: float = 0.0
    """Floor of the decay."""


@dataclass
class SftConfig:
    """Supervised warm-up on the labels before the first rollout (for models that start from nothing)."""

    num_steps: int = 0
    """Optimizer steps; 0 is none."""
    batch_size: int = 128
    """Prompts a step."""
    lr: float = 2e-3
    """Learning rate of the warm-up."""


@dataclass
class StopConfig:
    """Early stop when the task is solved."""

    reward: float | None = None
    """Stop when the mean rollout reward over `window` rollouts exceeds this; never when absent."""
    window: int = 5
    """Rollouts averaged."""


@dataclass
class TrainConfig:
    """Optimization."""

    num_rollout: int | None = None
    """Rollouts in all; derived from `num_epoch` when absent."""
    num_epoch: int | None = None
    """Passes over the prompts; with `num_rollout` the smaller wins."""
    global_batch_size: int | None = None
    """Samples an optimizer step; rollout batch × samples a prompt ÷ `num_steps_per_rollout` when absent."""
    num_steps_per_rollout: int | None = None
    """Optimizer steps a rollout; from the batch arithmetic when absent."""
    max_tokens_per_gpu: int = 4096
    """Token budget of a micro-batch; a longer sample gets a micro-batch of its own."""
    log_probs_max_tokens_per_gpu: int | None = None
    """Token budget of a forward-only micro-batch; `max_tokens_per_gpu` when absent."""
    recompute: Recompute = Recompute.none
    """Activation recomputation."""
    lr: float = 1e-6
    """Peak learning rate."""
    lr_schedule: LrScheduleConfig = field(default_factory=LrScheduleConfig)
    """Learning-rate schedule."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW)."""
    adam_beta1: float = 0.9
    """First-moment decay."""
    adam_beta2: float = 0.95
    """Second-moment decay."""
    adam_eps: float = 1e-8
    """Epsilon of the update."""
    clip_grad: float = 1.0
    """Bound of the global gradient norm; 0 is none."""
    sft: SftConfig = field(default_factory=SftConfig)
    """Supervised warm-up."""
    stop: StopConfig = field(default_factory=StopConfig)
    """Early stop."""
    step_timeout_seconds: float = 1800.0
    """Longest wait for one trainer call (a step, a scoring pass, a save)."""


@dataclass
class SaveConfig:
    """Checkpoints."""

    interval: int | None = None
    """Save every so many rollouts; only the final model when absent."""
    keep: int = 2
    """Checkpoints kept; older ones are removed."""
    final_model: bool = True
    """Write the trained model as a Hugging Face folder at the end."""


@dataclass
class PerfConfig:
    """Performance toggles; each is one option of `+perf=…`, off by default."""

    skip_zero_adv: bool = False
    """No backward for micro-batches whose advantages are all exactly zero."""
    pack_zero_adv: bool = False
    """Pack zero-advantage samples apart from the others."""
    reuse_log_probs: bool = False
    """Take the training forward's log-probs as the old policy."""
    publish_interval: int = 1
    """Publish weights to the engines every so many rollouts."""


@dataclass
class EvidenceConfig:
    """How runs of a sweep are compared."""

    window: str | None = None
    """Rollouts compared, `first-last` inclusive; all but the first and evaluation rollouts when absent."""
    threshold: float = 0.05
    """Relative gain on `perf/step_token_per_s` that counts as a pass."""


@dataclass
class DebugConfig:
    """Aids for finding faults."""

    dump: str | None = None
    """`rollouts` or `train`: write batches for a replay."""
