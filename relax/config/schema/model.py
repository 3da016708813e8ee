"""The policy model and how it is laid out over devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relax.config.schema.enums import DType, ModelFamily, ModelInit


@dataclass
class ArchConfig:
    """Dimensions of a dense decoder. Needed where there is no model folder; held against the folder where there is."""

    family: ModelFamily = ModelFamily.qwen3
    """Architecture."""
    num_layers: int = 2
    """Decoder layers."""
    hidden_size: int = 64
    """Width of the residual stream."""
    ffn_hidden_size: int = 128
    """Width of the gated MLP."""
    num_attention_heads: int = 4
    """Query heads."""
    num_kv_heads: int = 2
    """Key/value heads (grouped-query attention)."""
    head_dim: int = 16
    """Width of one head."""
    vocab_size: int = 32
    """Rows of the embedding."""
    max_position_embeddings: int = 64
    """Longest sequence the model accepts, in tokens."""
    rope_theta: float = 1_000_000.0
    """Base of the rotary embedding."""
    norm_eps: float = 1e-6
    """Epsilon of the RMS norms."""
    tie_embeddings: bool = True
    """Share the embedding with the output layer."""
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    """Scaling of the rotary embedding, by Hugging Face's names (`rope_type`, `factor` …); empty is none."""


@dataclass
class ModelConfig:
    """The policy model."""

    name: str = "tiny_qwen3"
    """Name for reports."""
    source: str | None = None
    """Hugging Face folder with config.json, tokenizer and (for `init=pretrained`) weights."""
    revision: str | None = None
    """Revision of the model, recorded in the manifest."""
    arch: ArchConfig | None = None
    """Dimensions; required when `source` is not set."""
    charset: str | None = None
    """Characters of a one-token-a-character tokenizer, for models without a folder."""
    dtype: DType = DType.fp32
    """Type of weights and activations; the optimizer keeps fp32 masters under bf16."""
    init: ModelInit = ModelInit.pretrained
    """`pretrained` loads `source`; `random` draws weights of `arch` (or of `source`'s config) from `seed`."""


@dataclass
class ParallelismConfig:
    """Degrees of parallelism of the trainer."""

    tensor: int = 1
    """Tensor-parallel degree."""
    pipeline: int = 1
    """Pipeline-parallel degree."""
    context: int = 1
    """Context-parallel degree."""
    expert: int = 1
    """Expert-parallel degree."""
    data: int | None = None
    """Data-parallel degree; derived from the GPUs when absent (1 on CPUs)."""
    sequence_parallel: bool = False
    """Shard norms and residuals over the tensor-parallel ranks too."""
    overlap_grad_reduce: bool = False
    """Start the gradient all-reduce while the last backward is still running."""
    distributed_optimizer: bool = False
    """Shard optimizer state over the data-parallel ranks (ZeRO-1)."""
    timeout_seconds: float = 600.0
    """Longest wait in one collective before the ranks fail."""


@dataclass
class PathsConfig:
    """Roots that the other paths hang from."""

    model_dir: str = "models"
    """Folder of model folders."""
    data_dir: str = "data"
    """Folder of datasets."""
    output_dir: str = "outputs"
    """Folder of run directories."""
