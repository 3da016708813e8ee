"""Algorithm options: one dataclass each under a common base, so that a key of another algorithm is an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax.config.schema.enums import (
    DivergenceKind,
    ImportanceKind,
    KlKind,
    LossKind,
    OldPolicy,
    OutsideKind,
    Reduction,
    SupportKind,
)


@dataclass
class AdvantageConfig:
    """GRPO's group advantage (Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300)."""

    center: bool = True
    """Subtract the mean reward of the prompt's group."""
    normalize_std: bool = True
    """Divide by the group's standard deviation (ddof 1) + 1e-6; off gives Dr. GRPO (arXiv:2503.20783)."""


@dataclass
class LossConfig:
    """Policy loss over the response tokens."""

    kind: LossKind = LossKind.clipped
    """`clipped` (PPO), `gspo` (arXiv:2507.18071) or `cispo` (arXiv:2506.13585)."""
    eps_clip: float = 0.2
    """Lower clip: the ratio is kept at or above 1 - eps_clip."""
    eps_clip_high: float = 0.28
    """Upper clip: the ratio is kept at or below 1 + eps_clip_high (DAPO, arXiv:2503.14476)."""
    dual_clip: float | None = None
    """Dual-clip constant c > 1: bounds the loss of negative advantages at -c·A (arXiv:1912.09729)."""
    reduction: Reduction = Reduction.token_mean
    """`token_mean` over all valid tokens of the global batch, or `sample_mean` over its samples' token means."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""


@dataclass
class KlConfig:
    """KL to the frozen reference policy. Both coefficients zero: no reference is loaded at all."""

    kind: KlKind = KlKind.k3
    """Estimator; `k1` is refused as a loss because its expected gradient is zero."""
    loss_coef: float = 0.0
    """Weight of the KL as a loss term."""
    penalty_coef: float = 0.0
    """Weight of the KL as a per-token penalty subtracted from the advantage."""
    reference: bool | None = None
    """Whether a frozen reference is kept and scored; derived: only where a coefficient uses it."""


@dataclass
class ImportanceConfig:
    """Correction for the gap between the trainer's and the engine's log-probs of the same tokens."""

    kind: ImportanceKind = ImportanceKind.none
    """`tis` truncates the weight at `cap`; `icepop`, `geometric` and `sequence` mask outside [low, high]."""
    cap: float = 2.0
    """Upper bound of the truncated weight."""
    low: float = 0.5
    """Lower bound of the masked variants."""
    high: float = 2.0
    """Upper bound of the masked variants."""


@dataclass
class DistillConfig:
    """Divergence between student and teacher on the student's own tokens."""

    divergence: DivergenceKind = DivergenceKind.reverse_kl
    """Which divergence; the ends of the JSD are named, never reached through `beta`."""
    beta: float = 0.5
    """Mixture weight of the teacher in `jsd`, strictly between 0 and 1."""
    support: SupportKind = SupportKind.sampled
    """Token ids compared at each position."""
    top_k: int = 16
    """Size of the top-k supports."""
    outside: OutsideKind = OutsideKind.tail
    """Treatment of the mass outside the support."""
    temperature: float = 1.0
    """Temperature of both sides."""
    loss_coef: float = 1.0
    """Weight of the divergence as a loss term."""
    advantage_coef: float = 0.0
    """Weight of the sampled-token log-ratio as an advantage term."""


@dataclass
class SdpoFeedbackConfig:
    """How the teacher prompt is built from the group's outcome."""

    path: str = "relax.feedback.sdpo:GoldenAnswerSDPOFeedback"
    """Class that turns rewards into feedback and teacher prompts, as `package.module:Class`."""
    success_reward_threshold: float = 1.0
    """A sample whose score reaches this counts as a success."""
    max_teacher_prompt_len: int = 4096
    """Teacher prompts are cut to this many tokens, and the cuts are counted."""
    strip_thinking: bool = True
    """Drop `<think>…</think>` from demonstrations."""


@dataclass
class AlgorithmConfig:
    """What every algorithm has. `algorithm=<option>` picks the dataclass."""

    name: str = "grpo"
    """Name of the option, for reports."""
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    """Group advantage."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Policy loss."""
    old_policy: OldPolicy = OldPolicy.trainer
    """Source of the old log-probs."""
    kl: KlConfig = field(default_factory=KlConfig)
    """KL to the reference policy."""
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)
    """Trainer-against-rollout correction."""


@dataclass
class GrpoConfig(AlgorithmConfig):
    """Group Relative Policy Optimization (arXiv:2402.03300)."""


@dataclass
class OpdConfig(AlgorithmConfig):
    """On-policy distillation from a teacher (arXiv:2306.13649)."""

    name: str = "opd"
    """Name of the option, for reports."""
    distill: DistillConfig = field(default_factory=DistillConfig)
    """Divergence to the teacher."""


@dataclass
class OpsdConfig(OpdConfig):
    """On-policy self-distillation: the teacher also sees a privileged prompt column."""

    name: str = "opsd"
    """Name of the option, for reports."""
    teacher_prompt_key: str | None = None
    """Dataset column that holds the teacher's privileged prompt."""


@dataclass
class SdpoConfig(OpdConfig):
    """Self-distillation policy optimization: the teacher prompt is built from the group's outcome."""

    name: str = "sdpo"
    """Name of the option, for reports."""
    feedback: SdpoFeedbackConfig = field(default_factory=SdpoFeedbackConfig)
    """Construction of the teacher prompt."""
