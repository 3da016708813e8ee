"""Generation: the engine, the shape of a rollout, and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relax.config.schema.data import DataConfig, RewardConfig
from relax.config.schema.enums import EngineKind


@dataclass
class RolloutConfig:
    """One rollout draws `batch_size` prompts and generates `n_samples_per_prompt` responses for each."""

    engine: EngineKind = EngineKind.embedded
    """`embedded` (transformers in a Ray actor), `sglang` (managed servers) or `external` (running servers)."""
    num_gpus: int | None = None
    """GPUs of all engines; derived from the mode when absent (colocate: all but the teacher's)."""
    num_gpus_per_engine: int = 1
    """GPUs of one engine (its tensor-parallel degree)."""
    num_engines: int | None = None
    """Engine replicas; `num_gpus` ÷ `num_gpus_per_engine` when absent, 1 on CPUs."""
    batch_size: int = 32
    """Prompts a rollout."""
    n_samples_per_prompt: int = 8
    """Responses a prompt (the group size)."""
    over_sampling_batch_size: int | None = None
    """Prompts generated so that `batch_size` are left after filtering; `batch_size` when absent."""
    max_response_len: int = 5
    """Cap of a response, in tokens; a response that reaches it without a stop token is marked truncated."""
    temperature: float = 1.0
    """Sampling temperature; the trainer's log-probs use the same one."""
    top_p: float = 1.0
    """Nucleus mass; below 1 the reported log-probs still belong to the full distribution."""
    top_k: int = -1
    """Keep the k most likely tokens; -1 keeps all."""
    max_batch_sequences: int = 256
    """Sequences the embedded engine decodes at once."""
    engine_start_timeout_seconds: float = 300.0
    """Longest wait for an engine to start or to recover."""
    http_timeout_seconds: float = 120.0
    """Time-out of one HTTP call to an engine."""
    generate_timeout_seconds: float = 1800.0
    """Longest wait for the generation of one rollout."""
    sglang: dict[str, Any] = field(default_factory=dict)
    """Server arguments of SGLang, by their own names."""


@dataclass
class EvalSetConfig:
    """One named evaluation set."""

    data: DataConfig = field(default_factory=DataConfig)
    """Prompts of the set."""
    reward: RewardConfig | None = None
    """Scoring; the run's own `reward` when absent."""
    max_prompts: int | None = None
    """Use the first so many prompts; all when absent."""
    n_samples_per_prompt: int = 1
    """Responses a prompt; pass@k is reported for k = 1, 2, 4 … up to this."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass."""
    max_response_len: int | None = None
    """Cap of a response; the rollout's own when absent."""
    pass_threshold: float = 1.0
    """A response whose reward reaches this counts as a pass."""


@dataclass
class EvalConfig:
    """Evaluation during the run."""

    sets: dict[str, EvalSetConfig] = field(default_factory=dict)
    """Evaluation sets by name."""
    interval: int | None = None
    """Evaluate every so many rollouts; never in between when absent."""
    at_start: bool = False
    """Evaluate before the first rollout."""
    at_end: bool = True
    """Evaluate after the last rollout."""
