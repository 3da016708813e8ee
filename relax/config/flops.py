"""Floating-point work of a forward pass, from dimensions and sequence lengths."""

from __future__ import annotations

from collections.abc import Iterable

from relax.config.hf_arch import has_qk_norm, has_qkv_bias
from relax.config.schema import ArchConfig

TRAINING_FACTOR = 3
"""Forward + backward over forward."""


def linear_parameters(arch: ArchConfig) -> int:
    """Weights of all matrix multiplications of one token, the output layer included."""
    attention = arch.hidden_size * arch.head_dim * (2 * arch.num_attention_heads + 2 * arch.num_kv_heads)
    layer = attention + 3 * arch.hidden_size * arch.ffn_hidden_size
    return arch.num_layers * layer + arch.hidden_size * arch.vocab_size


def num_parameters(arch: ArchConfig) -> int:
    """All weights, norms and biases included; a tied output layer counts once."""
    norms = arch.hidden_size * (2 * arch.num_layers + 1)
    per_layer = 2 * arch.head_dim if has_qk_norm(arch) else 0
    if has_qkv_bias(arch):
        per_layer += arch.head_dim * (arch.num_attention_heads + 2 * arch.num_kv_heads)
    embedding = 0 if arch.tie_embeddings else arch.hidden_size * arch.vocab_size
    return linear_parameters(arch) + embedding + norms + per_layer * arch.num_layers


def forward_flops(arch: ArchConfig, lengths: Iterable[int]) -> float:
    """2 · tokens · weights, plus causal attention 2 · L² · heads · head_dim a layer and sequence."""
    total = 0.0
    per_token = 2.0 * linear_parameters(arch)
    per_square = 2.0 * arch.num_layers * arch.num_attention_heads * arch.head_dim
    for length in lengths:
        total += per_token * length + per_square * length * length
    return total
