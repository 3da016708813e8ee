"""Core attention over packed sequences, with the rotary embedding inside.

Megatron's local attention refuses packed sequences and its rotary code loops over them. Here the rotary angles are
looked up once a micro-batch by position, and the sequences are laid out as a few dense [B, L] blocks of similar
length: one attention call a block, whatever the number of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams


@dataclass(frozen=True)
class LengthBlock:
    """Sequences of similar length, padded on the right to the longest of them."""

    rows: torch.Tensor
    """[B · L] row of the pack for every slot; padding slots point at the sequence's last token."""
    num_sequences: int
    max_length: int


@dataclass
class PackedSequences(PackedSeqParams):
    """What the attention layers need to know of one pack of T tokens."""

    cos: torch.Tensor | None = None
    """[T, 1, head_dim]"""
    sin: torch.Tensor | None = None
    """[T, 1, head_dim]"""
    blocks: list[LengthBlock] = field(default_factory=list)
    order: torch.Tensor | None = None
    """[T] slot, in the blocks laid one after the other, of every token of the pack."""


def length_blocks(lengths: np.ndarray, device: torch.device) -> tuple[list[LengthBlock], torch.Tensor]:
    """Cut a pack into dense blocks: sequences whose lengths round up to the same power of two share one.

    Args:
        lengths: [n] tokens of each sequence, all ≥ 1.
        device: where the index tensors live.

    Returns:
        The blocks and `order` [T].
    """
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    classes = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    order = np.empty(int(lengths.sum()), np.int64)
    blocks, base = [], 0
    for size_class in np.unique(classes):
        members = np.flatnonzero(classes == size_class)
        longest = int(lengths[members].max())
        slots = np.arange(longest)[None, :]
        member_lengths = lengths[members][:, None]
        rows = starts[members][:, None] + np.minimum(slots, member_lengths - 1)
        real = slots < member_lengths
        order[rows[real]] = base + np.flatnonzero(real.reshape(-1))
        base += rows.size
        blocks.append(LengthBlock(torch.from_numpy(rows.reshape(-1)).to(device), len(members), longest))
    return blocks, torch.from_numpy(order).to(device)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in the half-split layout of Hugging Face and Megatron; x is [T, heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class PackedAttention(torch.nn.Module):
    """Causal attention of each packed sequence on its own, for the core-attention slot of Megatron's layer spec."""

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_: Any) -> None:
        super().__init__()
        self.config = config

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSequences | None = None,
    ) -> torch.Tensor:
        """query [T, heads, head_dim], key and value [T, kv_heads, head_dim] → [T, heads · head_dim].

        Raises:
            ValueError: the call carries no `PackedSequences`.
        """
        packed = packed_seq_params
        if packed is None or packed.cos is None or packed.sin is None or packed.order is None:
            raise ValueError("PackedAttention works on packed sequences only: pass packed_seq_params=PackedSequences")
        query, key = rotate(query, packed.cos, packed.sin), rotate(key, packed.cos, packed.sin)
        parts = []
        for block in packed.blocks:
            # padding sits on the right, where the causal mask hides it from every real token
            q, k, v = (
                x.index_select(0, block.rows).view(block.num_sequences, block.max_length, *x.shape[1:]).transpose(1, 2)
                for x in (query, key, value)
            )
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            parts.append(out.transpose(1, 2).reshape(block.num_sequences * block.max_length, -1))
        slots = parts[0] if len(parts) == 1 else torch.cat(parts)
        return slots.index_select(0, packed.order)
