from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.config.schema import ArchConfig, ModelFamily
from relax.training.bridge_layout import Layout, from_shards, parameter_maps, to_shard


@st.composite
def layouts(draw: st.DrawFn) -> tuple[ArchConfig, int]:
    """An architecture and a tensor-parallel degree that divides it."""
    size = draw(st.sampled_from([1, 2, 3, 4]))
    groups = size * draw(st.integers(1, 3))
    arch = ArchConfig(
        num_kv_heads=groups,
        num_attention_heads=groups * draw(st.integers(1, 4)),
        head_dim=2 * draw(st.integers(1, 3)),
        hidden_size=draw(st.integers(1, 5)),
        ffn_hidden_size=size * draw(st.integers(1, 4)),
        vocab_size=draw(st.integers(1, 20)),
    )
    return arch, size


def hf_tensors(layout: Layout, arch: ArchConfig, *, bias: bool = False) -> list[torch.Tensor]:
    """Whole tensors of a layout, every element its own number."""
    query, kv = arch.num_attention_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    tail = () if bias else (arch.hidden_size,)
    shapes: dict[Layout, list[tuple[int, ...]]] = {
        Layout.replicated: [(arch.hidden_size,)],
        Layout.vocabulary: [(arch.vocab_size, arch.hidden_size)],
        Layout.rows: [(arch.hidden_size, arch.ffn_hidden_size)],
        Layout.qkv: [(query, *tail), (kv, *tail), (kv, *tail)],
        Layout.gate_up: [(arch.ffn_hidden_size, arch.hidden_size)] * 2,
    }
    tensors, start = [], 1
    for shape in shapes[layout]:
        count = int(torch.tensor(shape).prod())
        tensors.append(torch.arange(start, start + count, dtype=torch.float32).reshape(shape))
        start += count
    return tensors


@pytest.mark.parametrize("layout", list(Layout))
@settings(deadline=None, max_examples=30)
@given(case=layouts())
def test_round_trip_is_exact_and_shards_are_equal_in_shape(layout: Layout, case: tuple[ArchConfig, int]) -> None:
    arch, size = case
    whole = hf_tensors(layout, arch)
    shards = [to_shard(whole, layout, arch, rank=rank, size=size) for rank in range(size)]
    assert len({shard.shape for shard in shards}) == 1
    back = from_shards(shards, layout, arch)
    assert len(back) == len(whole)
    assert all(torch.equal(a, b) for a, b in zip(back, whole))


@settings(deadline=None, max_examples=20)
@given(case=layouts())
def test_round_trip_of_qkv_biases_is_exact(case: tuple[ArchConfig, int]) -> None:
    arch, size = case
    whole = hf_tensors(Layout.qkv, arch, bias=True)
    shards = [to_shard(whole, Layout.qkv, arch, rank=rank, size=size) for rank in range(size)]
    assert all(torch.equal(a, b) for a, b in zip(from_shards(shards, Layout.qkv, arch), whole))


def test_qkv_rank_holds_whole_groups_in_megatrons_order() -> None:
    arch = ArchConfig(num_kv_heads=2, num_attention_heads=4, head_dim=2, hidden_size=1)
    query, key, value = hf_tensors(Layout.qkv, arch)
    shard = to_shard([query, key, value], Layout.qkv, arch, rank=1, size=2)
    # the second group: query heads 2 and 3, then its key and its value
    assert torch.equal(shard, torch.cat([query[4:8], key[2:4], value[2:4]]))


def test_gate_and_up_are_stacked_a_rank() -> None:
    arch = ArchConfig(ffn_hidden_size=4, hidden_size=3)
    gate, up = hf_tensors(Layout.gate_up, arch)
    shard = to_shard([gate, up], Layout.gate_up, arch, rank=1, size=2)
    assert torch.equal(shard, torch.cat([gate[2:], up[2:]]))


def test_vocabulary_is_padded_with_zero_rows_at_the_end() -> None:
    arch = ArchConfig(vocab_size=5, hidden_size=2)
    (table,) = hf_tensors(Layout.vocabulary, arch)
    last = to_shard([table], Layout.vocabulary, arch, rank=1, size=2)
    assert torch.equal(last, torch.cat([table[3:], torch.zeros(1, 2)]))


@pytest.mark.parametrize("family", list(ModelFamily))
@pytest.mark.parametrize("tied", [True, False])
def test_maps_cover_the_parameters_of_transformers_exactly_once(family: ModelFamily, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    from relax.data.model_folder import arch_to_hf

    arch = ArchConfig(family=family, tie_embeddings=tied, num_layers=2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(arch_to_hf(arch))
    names = [name for item in parameter_maps(arch) for name in item.hf_names]
    assert len(names) == len(set(names))
    assert set(names) == {name for name, _ in model.named_parameters()}
