from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.data.batch import TrainBatch
from relax.data.micro_batches import PackedMicroBatch, pack, plan_micro_batches

CPU = torch.device("cpu")
lengths_lists = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@settings(deadline=None, max_examples=150)
@given(lengths=lengths_lists, dp_size=st.integers(1, 4), max_tokens=st.integers(1, 200))
def test_plan_keeps_its_promises(lengths: list[int], dp_size: int, max_tokens: int) -> None:
    array = np.array(lengths, np.int64)
    try:
        plans = plan_micro_batches(array, dp_size=dp_size, max_tokens=max_tokens)
    except ValueError:
        # refusals belong to batches that do not divide over the ranks
        assert len(lengths) < dp_size or len(lengths) % dp_size
        return
    dealt = sorted(row for plan in plans for rows in plan for row in rows)
    assert dealt == list(range(len(lengths)))
    assert len(plans) == dp_size
    assert len({len(plan) for plan in plans}) == 1
    for plan in plans:
        for rows in plan:
            assert rows
            assert rows == sorted(rows)
            assert len(rows) == 1 or array[rows].sum() <= max_tokens
    shares = [sum(len(rows) for rows in plan) for plan in plans]
    assert max(shares) - min(shares) <= 1


@settings(deadline=None, max_examples=30)
@given(lengths=lengths_lists, max_tokens=st.integers(1, 200))
def test_plan_is_deterministic_and_leaves_its_input(lengths: list[int], max_tokens: int) -> None:
    array = np.array(lengths, np.int64)
    first = plan_micro_batches(array, dp_size=1, max_tokens=max_tokens)
    assert plan_micro_batches(array.copy(), dp_size=1, max_tokens=max_tokens) == first
    assert array.tolist() == lengths


def test_one_micro_batch_where_the_budget_holds_all() -> None:
    assert plan_micro_batches(np.array([3, 5, 2]), dp_size=1, max_tokens=10) == [[[0, 1, 2]]]


def test_ranks_get_about_equal_tokens() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 64)
    plans = plan_micro_batches(lengths, dp_size=4, max_tokens=2000)
    totals = [sum(int(lengths[rows].sum()) for rows in plan) for plan in plans]
    assert max(totals) - min(totals) < 0.02 * sum(totals) / 4


def test_odd_sample_goes_to_a_rank_that_has_room_for_it() -> None:
    # the rank with the long sample could not cut a second one off: the other has no more micro-batches than one
    first, second = plan_micro_batches(np.array([4, 1, 1]), dp_size=2, max_tokens=4)
    assert [first, second] == [[[0]], [[1, 2]]]


def test_oversize_sample_travels_alone() -> None:
    (plan,) = plan_micro_batches(np.array([3, 50, 4]), dp_size=1, max_tokens=8)
    assert sorted(plan) == [[0, 2], [1]]


def test_fewer_samples_than_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 samples cannot feed 2 data-parallel ranks: raise train\.global_batch"):
        plan_micro_batches(np.array([3]), dp_size=2, max_tokens=8)


def test_shares_whose_counts_cannot_agree_are_refused_with_the_numbers() -> None:
    # three oversize samples: one rank needs two micro-batches, the other has one sample
    with pytest.raises(ValueError, match=r"3 samples do not divide over 2 .*max_tokens_per_gpu=4 .*multiple of 2"):
        plan_micro_batches(np.array([5, 5, 5]), dp_size=2, max_tokens=4)


# --- packing ------------------------------------------------------------------------------------------------------


def make_batch(prompts: list[int], responses: list[int], *, seed: int = 0) -> TrainBatch:
    rng = np.random.default_rng(seed)
    lengths = np.array(prompts, np.int64) + np.array(responses, np.int64)
    total = sum(responses)
    return TrainBatch(
        tokens=rng.integers(1, 1000, lengths.sum()),
        lengths=lengths,
        response_lengths=np.array(responses, np.int64),
        loss_mask=np.ones(total, np.float32),
        sample_ids=np.arange(100, 100 + len(prompts)),
        advantages=rng.normal(size=total).astype(np.float32),
        old_log_probs=rng.normal(size=total).astype(np.float32),
    )


def pack_rows(batch: TrainBatch, rows: list[int], *, pad_multiple: int = 1) -> PackedMicroBatch:
    weights = np.arange(int(batch.response_lengths.sum()), dtype=np.float32)
    return pack(batch, rows, weights=weights, pad_multiple=pad_multiple, device=CPU)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8),
    multiple=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_pack_lines_up_every_response_token(sizes: list[tuple[int, int]], multiple: int, seed: int) -> None:
    batch = make_batch([p for p, _ in sizes], [r for _, r in sizes])
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(sizes))[: rng.integers(1, len(sizes) + 1)].tolist()
    packed = pack_rows(batch, rows, pad_multiple=multiple)
    total = packed.input_ids.shape[1]
    assert total % multiple == 0
    assert total - packed.num_tokens < multiple
    assert packed.num_tokens == int(batch.lengths[rows].sum())
    assert packed.lengths.sum() == total
    slot = start = 0
    for index, row in enumerate(rows):
        prompt, response = sizes[row]
        sequence = batch.tokens[batch.sequence_offsets[row] : batch.sequence_offsets[row + 1]]
        assert packed.input_ids[0, start : start + len(sequence)].tolist() == sequence.tolist()
        assert packed.position_ids[0, start : start + len(sequence)].tolist() == list(range(len(sequence)))
        for step in range(response):
            # the logits at the token before it predict a response token
            assert packed.response_positions[slot] == start + prompt + step - 1
            assert packed.targets[slot] == sequence[prompt + step]
            assert packed.sample_index[slot] == index
            origin = batch.response_offsets[row] + step
            assert packed.token_fields["weights"][slot] == origin
            assert packed.token_fields["advantages"][slot] == batch.advantages[origin]  # type: ignore[index]
            slot += 1
        start += len(sequence)
    assert slot == len(packed.targets)


def test_padding_is_one_sequence_of_its_own_that_no_response_sees() -> None:
    packed = pack_rows(make_batch([2, 1], [3, 1]), [0, 1], pad_multiple=4)
    assert packed.lengths.tolist() == [5, 2, 1]
    assert packed.input_ids[0, 7:].tolist() == [0]
    assert packed.position_ids[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 0]
    assert packed.response_positions.tolist() == [1, 2, 3, 5]
    assert packed.num_tokens == 7


def test_fields_that_the_batch_lacks_do_not_travel() -> None:
    packed = pack_rows(make_batch([2], [3]), [0])
    assert set(packed.token_fields) == {"weights", "advantages", "old_log_probs"}


def test_sample_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="sample 101 has no prompt token"):
        pack_rows(make_batch([2, 0], [3, 2]), [0, 1])
