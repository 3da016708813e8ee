"""Closed choices of the config tree. Members are named by the lower-case value a person types (`dtype=bf16`)."""

from enum import Enum


class DType(Enum):
    """Floating-point type of weights and activations."""

    fp32 = "fp32"
    bf16 = "bf16"


class ModelFamily(Enum):
    """Architectures the weight bridge knows (all dense decoders)."""

    qwen3 = "qwen3"
    qwen2 = "qwen2"
    llama = "llama"


class ModelInit(Enum):
    """Where the first weights come from."""

    pretrained = "pretrained"
    random = "random"


class DataKind(Enum):
    """Where prompts come from."""

    file = "file"
    task = "task"
    reasoning_gym = "reasoning_gym"


class RewardKind(Enum):
    """How a response is scored."""

    exact_match = "exact_match"
    math = "math"
    reasoning_gym = "reasoning_gym"
    custom = "custom"


class LossKind(Enum):
    """Policy-loss family (DESIGN: clipped surrogate, GSPO's sequence ratio, CISPO's detached weight)."""

    clipped = "clipped"
    gspo = "gspo"
    cispo = "cispo"


class Reduction(Enum):
    """Denominator of a loss over the whole global batch."""

    token_mean = "token_mean"
    sample_mean = "sample_mean"


class OldPolicy(Enum):
    """Source of the old log-probs: a trainer pass, the engine's own values, or a kept snapshot of what went out."""

    trainer = "trainer"
    rollout = "rollout"
    kept = "kept"


class KlKind(Enum):
    """Estimator of the KL divergence to the reference policy (Schulman 2020, "Approximating KL divergence")."""

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    unbiased = "unbiased"


class ImportanceKind(Enum):
    """Correction for the gap between trainer and rollout log-probs."""

    none = "none"
    tis = "tis"
    icepop = "icepop"
    geometric = "geometric"
    sequence = "sequence"


class LrScheduleKind(Enum):
    """Shape of the learning rate after its warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class Recompute(Enum):
    """Activation recomputation in the trainer."""

    none = "none"
    full = "full"


class EngineKind(Enum):
    """Which rollout engine generates."""

    embedded = "embedded"
    sglang = "sglang"
    external = "external"


class ModeKind(Enum):
    """How rollout and training share time and devices."""

    colocate = "colocate"
    hybrid = "hybrid"
    # `async` is a keyword: the member is made by value so that `mode.kind=async` still works
    locals()["async"] = "async"


class LauncherKind(Enum):
    """Who starts the Ray cluster the run lives in."""

    local = "local"
    ray = "ray"
    slurm = "slurm"
    kuberay = "kuberay"


class WandbMode(Enum):
    """Weights & Biases: off, written to disk, or live."""

    disabled = "disabled"
    offline = "offline"
    online = "online"


class DivergenceKind(Enum):
    """Divergence between student S and teacher T, per position."""

    forward_kl = "forward_kl"
    reverse_kl = "reverse_kl"
    jsd = "jsd"
    low_variance = "low_variance"


class SupportKind(Enum):
    """Token ids a divergence is computed over."""

    sampled = "sampled"
    student_topk = "student_topk"
    teacher_topk = "teacher_topk"
    union = "union"
    full = "full"


class OutsideKind(Enum):
    """What happens to probability mass outside the support."""

    tail = "tail"
    renormalize = "renormalize"
    truncate = "truncate"


class TeacherKind(Enum):
    """Where teacher log-probs come from."""

    none = "none"
    frozen = "frozen"
    ema = "ema"
    live = "live"
    checkpoint = "checkpoint"
    sglang = "sglang"
