"""The exact arguments Megatron-core gets, as plain values: dtypes and activations by name.

`relax.plan` prints them and `relax.training` turns the names into objects; there is no other place.
"""

from __future__ import annotations

from typing import Any

from relax.config.hf_arch import has_qk_norm, has_qkv_bias
from relax.config.schema import ArchConfig, DType, Recompute, RunConfig

TORCH_DTYPE_NAMES = {DType.fp32: "float32", DType.bf16: "bfloat16"}
"""torch's name of each dtype."""


def padded_vocab_size(arch: ArchConfig, tensor: int) -> int:
    """Rows of the embedding after padding to a multiple of the tensor-parallel degree."""
    return -(-arch.vocab_size // tensor) * tensor


def transformer_config_args(arch: ArchConfig, config: RunConfig) -> dict[str, Any]:
    """Arguments of `megatron.core.transformer.TransformerConfig`."""
    parallelism = config.parallelism
    dtype = TORCH_DTYPE_NAMES[config.model.dtype]
    args: dict[str, Any] = {
        "num_layers": arch.num_layers,
        "hidden_size": arch.hidden_size,
        "ffn_hidden_size": arch.ffn_hidden_size,
        "num_attention_heads": arch.num_attention_heads,
        "num_query_groups": arch.num_kv_heads,
        "kv_channels": arch.head_dim,
        "gated_linear_unit": True,
        "activation_func": "silu",
        "normalization": "RMSNorm",
        "layernorm_epsilon": arch.norm_eps,
        "qk_layernorm": has_qk_norm(arch),
        "add_bias_linear": False,
        "add_qkv_bias": has_qkv_bias(arch),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": config.model.dtype is DType.bf16,
        "tensor_model_parallel_size": parallelism.tensor,
        "pipeline_model_parallel_size": parallelism.pipeline,
        "context_parallel_size": parallelism.context,
        "sequence_parallel": parallelism.sequence_parallel,
        "use_cpu_initialization": True,
        "perform_initialization": False,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }
    if config.train.recompute is Recompute.full:
        args |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return args


def ddp_config_args(config: RunConfig) -> dict[str, Any]:
    """Arguments of `megatron.core.distributed.DistributedDataParallelConfig`."""
    return {
        "grad_reduce_in_fp32": True,
        "overlap_grad_reduce": config.parallelism.overlap_grad_reduce,
        "overlap_param_gather": False,
        "use_distributed_optimizer": config.parallelism.distributed_optimizer,
        "average_in_collective": False,
    }


def optimizer_config_args(config: RunConfig, *, lr: float) -> dict[str, Any]:
    """Arguments of `megatron.core.optimizer.OptimizerConfig` for peak learning rate `lr`."""
    train = config.train
    return {
        "optimizer": "adam",
        "lr": lr,
        "min_lr": min(train.lr_schedule.min_lr, lr),
        "weight_decay": train.weight_decay,
        "decoupled_weight_decay": True,
        "adam_beta1": train.adam_beta1,
        "adam_beta2": train.adam_beta2,
        "adam_eps": train.adam_eps,
        "clip_grad": train.clip_grad,
        "bf16": config.model.dtype is DType.bf16,
        "params_dtype": TORCH_DTYPE_NAMES[config.model.dtype],
        "use_distributed_optimizer": config.parallelism.distributed_optimizer,
    }
