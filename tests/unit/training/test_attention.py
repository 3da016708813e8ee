from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.config.schema import ArchConfig, ModelFamily
from relax.data.model_folder import arch_to_hf
from relax.training.attention import PackedAttention, PackedSequences, length_blocks
from relax.training.model import RotaryTable

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES = [{}, LLAMA3, {"rope_type": "linear", "factor": 2.0}]
ragged = st.lists(st.integers(1, 20), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(lengths=ragged)
def test_blocks_hold_every_token_once_in_its_order(lengths: list[int]) -> None:
    blocks, order = length_blocks(np.array(lengths), CPU)
    slots = torch.cat([block.rows for block in blocks])
    # reading the slots back gives the tokens of the pack
    assert torch.equal(slots[order], torch.arange(sum(lengths)))
    assert sum(block.num_sequences for block in blocks) == len(lengths)
    for block in blocks:
        assert len(block.rows) == block.num_sequences * block.max_length
    # padding at most doubles the work
    assert len(slots) <= 2 * sum(lengths)


@pytest.mark.parametrize("scaling", ROPES)
def test_rotary_table_is_transformers_own(scaling: dict) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    arch = ArchConfig(family=ModelFamily.llama, rope_scaling=scaling)
    hf_config = arch_to_hf(arch)
    positions = torch.tensor([0, 1, 2, 7, 40, 0, 63])
    cos, sin = LlamaRotaryEmbedding(hf_config)(torch.zeros(1), positions[None])
    ours = RotaryTable(hf_config, arch, torch.float32, CPU)(positions)
    torch.testing.assert_close(ours[0][:, 0], cos[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(ours[1][:, 0], sin[0], rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(lengths=ragged, heads=st.sampled_from([(4, 2), (2, 2), (4, 1)]), scaling=st.sampled_from(ROPES))
def test_packed_attention_is_attention_of_each_sequence_alone(
    lengths: list[int], heads: tuple[int, int], scaling: dict
) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    query_heads, kv_heads = heads
    arch = ArchConfig(
        family=ModelFamily.llama, num_attention_heads=query_heads, num_kv_heads=kv_heads, rope_scaling=scaling
    )
    hf_config = arch_to_hf(arch)
    total = sum(lengths)
    generator = torch.Generator().manual_seed(total)
    inputs = [
        torch.randn(total, count, arch.head_dim, generator=generator).requires_grad_()
        for count in (query_heads, kv_heads, kv_heads)
    ]
    upstream = torch.randn(total, query_heads * arch.head_dim, generator=generator)

    positions = torch.cat([torch.arange(n) for n in lengths])
    cos, sin = RotaryTable(hf_config, arch, torch.float32, CPU)(positions)
    blocks, order = length_blocks(np.array(lengths), CPU)
    packed = PackedSequences(qkv_format="thd", cos=cos, sin=sin, blocks=blocks, order=order)
    attention = PackedAttention(None, 1, None, "self")
    out = attention(*inputs, packed_seq_params=packed)
    gradients = torch.autograd.grad((out * upstream).sum(), inputs)

    rotary = LlamaRotaryEmbedding(hf_config)
    pieces = []
    for q, k, v in zip(*(tensor.split(lengths) for tensor in inputs)):
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        q, k = apply_rotary_pos_emb(q, k, *rotary(q, torch.arange(q.shape[2])[None]))
        alone = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        pieces.append(alone[0].transpose(0, 1).flatten(1))
    expected = torch.cat(pieces)
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), inputs)
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-6)
    for ours, theirs in zip(gradients, expected_gradients):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-6)


def test_call_without_packing_is_refused() -> None:
    states = torch.zeros(2, 1, 4)
    with pytest.raises(ValueError, match="pass packed_seq_params=PackedSequences"):
        PackedAttention(None, 1, None, "self")(states, states, states)
