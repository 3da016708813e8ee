"""Layouts of the weight bridge: how Hugging Face tensors become Megatron shards and back. Pure tensor functions.

Megatron interleaves q, k and v by key/value group and stacks gate over up on every tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from relax.config.hf_arch import has_qk_norm, has_qkv_bias
from relax.config.schema import ArchConfig


class Layout(Enum):
    """How a parameter is laid out in Megatron."""

    replicated = "replicated"
    vocabulary = "vocabulary"
    """Rows sharded, padded to a multiple of the degree."""
    rows = "rows"
    """Input columns sharded (row-parallel linear)."""
    qkv = "qkv"
    gate_up = "gate_up"


@dataclass(frozen=True)
class ParameterMap:
    """One Megatron parameter and the Hugging Face tensors it is made of."""

    megatron_name: str
    hf_names: tuple[str, ...]
    layout: Layout


def parameter_maps(arch: ArchConfig) -> Iterator[ParameterMap]:
    """All parameters of a model, in the order of its layers."""
    yield ParameterMap("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), Layout.vocabulary)
    for index in range(arch.num_layers):
        yield from _layer_maps(arch, f"decoder.layers.{index}", f"model.layers.{index}")
    yield ParameterMap("decoder.final_layernorm.weight", ("model.norm.weight",), Layout.replicated)
    if not arch.tie_embeddings:
        yield ParameterMap("output_layer.weight", ("lm_head.weight",), Layout.vocabulary)


def _layer_maps(arch: ArchConfig, megatron: str, hf: str) -> Iterator[ParameterMap]:
    attention, hf_attention = f"{megatron}.self_attention", f"{hf}.self_attn"
    yield ParameterMap(f"{megatron}.input_layernorm.weight", (f"{hf}.input_layernorm.weight",), Layout.replicated)
    kinds = ("weight", "bias") if has_qkv_bias(arch) else ("weight",)
    for kind in kinds:
        names = tuple(f"{hf_attention}.{part}_proj.{kind}" for part in "qkv")
        yield ParameterMap(f"{attention}.linear_qkv.{kind}", names, Layout.qkv)
    if has_qk_norm(arch):
        for part in "qk":
            yield ParameterMap(
                f"{attention}.{part}_layernorm.weight", (f"{hf_attention}.{part}_norm.weight",), Layout.replicated
            )
    yield ParameterMap(f"{attention}.linear_proj.weight", (f"{hf_attention}.o_proj.weight",), Layout.rows)
    yield ParameterMap(
        f"{megatron}.pre_mlp_layernorm.weight", (f"{hf}.post_attention_layernorm.weight",), Layout.replicated
    )
    gate_up = (f"{hf}.mlp.gate_proj.weight", f"{hf}.mlp.up_proj.weight")
    yield ParameterMap(f"{megatron}.mlp.linear_fc1.weight", gate_up, Layout.gate_up)
    yield ParameterMap(f"{megatron}.mlp.linear_fc2.weight", (f"{hf}.mlp.down_proj.weight",), Layout.rows)


def to_shard(
    tensors: Sequence[torch.Tensor], layout: Layout, arch: ArchConfig, *, rank: int, size: int
) -> torch.Tensor:
    """The shard of tensor-parallel rank `rank` of `size`, from the whole Hugging Face tensors."""
    if layout is Layout.replicated:
        return tensors[0]
    if layout is Layout.rows:
        return tensors[0].chunk(size, dim=1)[rank]
    if layout is Layout.vocabulary:
        table = tensors[0]
        padding = -table.shape[0] % size
        return torch.nn.functional.pad(table, (0, 0, 0, padding)).chunk(size)[rank]
    if layout is Layout.gate_up:
        return torch.cat([tensor.chunk(size)[rank] for tensor in tensors])
    groups = arch.num_kv_heads
    interleaved = torch.cat([t.reshape(groups, -1, *t.shape[1:]) for t in tensors], dim=1)
    return interleaved.chunk(size)[rank].reshape(-1, *tensors[0].shape[1:])


def from_shards(shards: Sequence[torch.Tensor], layout: Layout, arch: ArchConfig) -> list[torch.Tensor]:
    """The whole Hugging Face tensors, from the shards of all tensor-parallel ranks in order."""
    if layout is Layout.replicated:
        return [shards[0]]
    if layout is Layout.rows:
        return [torch.cat(list(shards), dim=1)]
    if layout is Layout.vocabulary:
        return [torch.cat(list(shards))[: arch.vocab_size]]
    if layout is Layout.gate_up:
        halves = [shard.chunk(2) for shard in shards]
        return [torch.cat([half[part] for half in halves]) for part in (0, 1)]
    whole = torch.cat(list(shards))
    grouped = whole.reshape(arch.num_kv_heads, -1, *whole.shape[1:])
    query_rows = arch.num_attention_heads // arch.num_kv_heads * arch.head_dim
    parts = grouped.split([query_rows, arch.head_dim, arch.head_dim], dim=1)
    return [part.reshape(-1, *whole.shape[1:]) for part in parts]
