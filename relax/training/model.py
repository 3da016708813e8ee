"""The policy as Megatron's own GPTModel, wrapped for data parallelism."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from relax.config.megatron_args import ddp_config_args, padded_vocab_size, transformer_config_args
from relax.config.schema import ArchConfig, RunConfig
from relax.training.attention import PackedAttention
from relax.training.norm import RMSNorm


def layer_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron's local layers with packed attention and our norms."""
    layer = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    layer.submodules.input_layernorm = RMSNorm
    layer.submodules.pre_mlp_layernorm = RMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * config.num_layers, layer_norm=RMSNorm)


def transformer_config(arch: ArchConfig, config: RunConfig) -> TransformerConfig:
    """The printable arguments with names turned into objects."""
    args = transformer_config_args(arch, config)
    args |= {name: getattr(torch, args[name]) for name in ("params_dtype", "pipeline_dtype")}
    args["activation_func"] = getattr(F, args["activation_func"])
    return TransformerConfig(**args)


def mark_sharded_parameters(model: torch.nn.Module) -> None:
    """Tell Megatron which parameters are shards of a tensor-parallel group.

    It marks them only while it draws initial weights, which we skip. Without the mark every rank but the first counts
    its shards as copies: the gradient norm leaves them out, and clipping is too weak.
    """
    for module in model.modules():
        if isinstance(module, (ColumnParallelLinear, VocabParallelEmbedding, RowParallelLinear)):
            weight = module.weight
            if weight is not None and not hasattr(weight, "tensor_model_parallel"):
                dim = 1 if isinstance(module, RowParallelLinear) else 0
                set_tensor_model_parallel_attributes(weight, is_parallel=True, dim=dim, stride=1)


def build_model(arch: ArchConfig, config: RunConfig, device: torch.device) -> DistributedDataParallel:
    """An uninitialised model under Megatron's DDP; load weights through the bridge before use."""
    megatron_config = transformer_config(arch, config)
    model = GPTModel(
        config=megatron_config,
        transformer_layer_spec=layer_spec(megatron_config),
        vocab_size=padded_vocab_size(arch, config.parallelism.tensor),
        max_sequence_length=arch.max_position_embeddings,
        share_embeddings_and_output_weights=arch.tie_embeddings,
        # the rotary embedding lives in the core attention
        position_embedding_type="none",
        parallel_output=True,
    ).to(device)
    mark_sharded_parameters(model)
    ddp = DistributedDataParallel(megatron_config, DistributedDataParallelConfig(**ddp_config_args(config)), model)
    megatron_config.finalize_model_grads_func = finalize_model_grads
    if config.parallelism.overlap_grad_reduce:
        megatron_config.no_sync_func = ddp.no_sync
    return ddp


class RotaryTable:
    """Rotary angles of one model, looked up by position."""

    def __init__(self, hf_config: Any, arch: ArchConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        if arch.rope_scaling:
            # transformers' own frequencies, so that a scaled model means the same in both
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            rope_init = ROPE_INIT_FUNCTIONS[arch.rope_scaling["rope_type"]]
            inverse, self._scale = rope_init(hf_config, torch.device("cpu"))
        else:
            exponents = torch.arange(0, arch.head_dim, 2, dtype=torch.int64).float() / arch.head_dim
            inverse, self._scale = 1.0 / arch.rope_theta**exponents, 1.0
        self._inverse = inverse.to(device)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [T, 1, head_dim] of positions [T]."""
        angles = positions.float()[:, None] * self._inverse[None, :]
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return (angles.cos() * self._scale).to(self._dtype), (angles.sin() * self._scale).to(self._dtype)
