"""Cutting a global batch into micro-batches, and packing one. Pure functions of lengths: no communication.

Every rank computes the same plan from the same global arrays, so the number of micro-batches agrees on all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from relax.data.batch import FloatArray, IntArray, TrainBatch, offsets

RankPlan = list[list[int]]
"""Micro-batches of one data-parallel rank: the rows of each, ascending."""


def plan_micro_batches(lengths: IntArray, *, dp_size: int, max_tokens: int) -> list[RankPlan]:
    """Deal samples to data-parallel ranks and cut each share by a token budget.

    Every sample appears exactly once; shares differ by at most one sample and are balanced by tokens; all ranks have
    the same number of micro-batches, none of them empty; a micro-batch exceeds the budget only when it is one sample
    that is longer than the budget.

    Args:
        lengths: [N] tokens of each sample.
        dp_size: data-parallel ranks.
        max_tokens: budget of a micro-batch.

    Raises:
        ValueError: fewer samples than ranks, or shares so unequal that counts cannot agree within the budget.
    """
    if len(lengths) < dp_size:
        raise ValueError(
            f"{len(lengths)} samples cannot feed {dp_size} data-parallel ranks: raise train.global_batch_size"
        )
    shares = _deal(lengths, dp_size)
    # the smallest share bounds the count: beyond it a rank would have an empty micro-batch
    limit = min(len(share) for share in shares)
    # an oversize sample fills one micro-batch, not as many as its tokens would
    filling = np.minimum(lengths, max_tokens)
    count = max(1, max(-(-int(filling[share].sum()) // max_tokens) for share in shares))
    for attempt in range(min(count, limit), limit + 1):
        plans = [_partition(lengths, share, attempt) for share in shares]
        if all(_fits(lengths, rows, max_tokens) for plan in plans for rows in plan):
            return plans
    raise ValueError(
        f"{len(lengths)} samples do not divide over {dp_size} data-parallel ranks, and a rank with {limit} of them "
        f"cannot make the micro-batches that train.max_tokens_per_gpu={max_tokens} asks of the others: make "
        f"train.global_batch_size a multiple of {dp_size}"
    )


def _deal(lengths: IntArray, dp_size: int) -> list[list[int]]:
    """Longest first to the rank with the fewest tokens that still has room.

    Any rank may take one of the `N % dp_size` samples above the common count: fixing beforehand which ranks do would
    give a second sample to the rank that already holds the longest.
    """
    common, extra = divmod(len(lengths), dp_size)
    shares: list[list[int]] = [[] for _ in range(dp_size)]
    heap = [(0, rank) for rank in range(dp_size)]
    for row in np.argsort(-lengths, kind="stable"):
        tokens, rank = heapq.heappop(heap)
        while len(shares[rank]) == common and extra == 0:
            tokens, rank = heapq.heappop(heap)
        extra -= len(shares[rank]) == common
        shares[rank].append(int(row))
        if len(shares[rank]) <= common:
            heapq.heappush(heap, (tokens + int(lengths[row]), rank))
    return shares


def _partition(lengths: IntArray, share: Sequence[int], count: int) -> RankPlan:
    """`share` (longest first) into `count` non-empty micro-batches of about equal tokens."""
    bins: RankPlan = [[] for _ in range(count)]
    # an empty bin sorts before any other, so that none stays empty while samples are left
    heap = [(0, index) for index in range(count)]
    for row in share:
        tokens, index = heapq.heappop(heap)
        bins[index].append(row)
        heapq.heappush(heap, (tokens + int(lengths[row]), index))
    return [sorted(rows) for rows in bins]


def _fits(lengths: IntArray, rows: Sequence[int], max_tokens: int) -> bool:
    return len(rows) == 1 or int(lengths[list(rows)].sum()) <= max_tokens


@dataclass(frozen=True)
class PackedMicroBatch:
    """One micro-batch as a single packed row of T tokens with R response tokens; all tensors on one device."""

    rows: list[int]
    """Rows of the global batch, in pack order."""
    input_ids: torch.Tensor
    """[1, T]"""
    position_ids: torch.Tensor
    """[1, T]"""
    lengths: IntArray
    """[n] tokens of each packed sequence, a padding sequence last where there is one."""
    response_positions: torch.Tensor
    """[R] rows of the logits that predict the response tokens."""
    targets: torch.Tensor
    """[R] response ids."""
    sample_index: torch.Tensor
    """[R] sample within the micro-batch."""
    token_fields: dict[str, torch.Tensor]
    """[R] each: `weights` and the batch's per-token arrays that are present."""
    num_tokens: int
    """Tokens of real samples."""


TOKEN_FIELDS = ("advantages", "rollout_log_probs", "old_log_probs", "ref_log_probs")
"""Response arrays of `TrainBatch` that travel into the loss."""


def pack(
    batch: TrainBatch, rows: Sequence[int], *, weights: FloatArray, pad_multiple: int = 1, device: torch.device
) -> PackedMicroBatch:
    """Pack some rows of a batch.

    Args:
        batch: the global batch.
        rows: rows to pack, in order.
        weights: [R of the whole batch] reduction weights.
        pad_multiple: T is padded up to a multiple of this with one extra sequence of zeros (sequence parallelism
            needs the tensor-parallel degree).
        device: where the tensors go.

    Raises:
        ValueError: a sample has no prompt token, so that nothing predicts its first response token.
    """
    wanted = np.asarray(rows, np.int64)
    part = batch.select(wanted)
    if (part.lengths <= part.response_lengths).any():
        row = int(wanted[np.argmax(part.lengths <= part.response_lengths)])
        raise ValueError(f"sample {int(batch.sample_ids[row])} has no prompt token: nothing predicts its response")
    part_weights = _select_response(batch, wanted, weights)
    num_tokens = int(part.lengths.sum())
    padding = -num_tokens % pad_multiple
    lengths = np.append(part.lengths, padding) if padding else part.lengths
    # the logits at position p predict the token at p + 1
    first = part.sequence_offsets[1:] - part.response_lengths - 1
    response_positions = _runs(first, part.response_lengths)
    fields = {name: getattr(part, name) for name in TOKEN_FIELDS if getattr(part, name) is not None}

    def move(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return PackedMicroBatch(
        rows=[int(row) for row in wanted],
        input_ids=move(np.pad(part.tokens, (0, padding)))[None, :],
        position_ids=move(_runs(np.zeros_like(lengths), lengths))[None, :],
        lengths=lengths,
        response_positions=move(response_positions),
        targets=move(part.tokens[response_positions + 1]),
        sample_index=move(np.repeat(np.arange(len(wanted)), part.response_lengths)),
        token_fields={"weights": move(part_weights), **{name: move(values) for name, values in fields.items()}},
        num_tokens=num_tokens,
    )


def _runs(starts: IntArray, counts: IntArray) -> IntArray:
    """`starts[i]`, `starts[i] + 1` … of `counts[i]` integers each, one run after the other."""
    before = offsets(counts)
    return np.arange(before[-1]) + np.repeat(starts - before[:-1], counts)


def _select_response(batch: TrainBatch, rows: IntArray, values: FloatArray) -> FloatArray:
    return values[_runs(batch.response_offsets[rows], batch.response_lengths[rows])]
