"""`TrainBatch`: the arrays one rollout hands to the trainer.

Two ragged layouts, both concatenated over samples in order: *sequence* arrays (prompt + response, `lengths`) and
*response* arrays (`response_lengths`). NumPy only, so that Ray moves them without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from relax.data.sample import Sample

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrainBatch:
    """N samples with S sequence tokens and R response tokens in all. Arrays are read-only once shared."""

    tokens: IntArray
    """[S] prompt and response ids."""
    lengths: IntArray
    """[N] tokens of each sequence."""
    response_lengths: IntArray
    """[N] tokens of each response (the tail of its sequence)."""
    loss_mask: FloatArray
    """[R] 1 where the token counts."""
    sample_ids: IntArray
    """[N] `Sample.index`."""
    advantages: FloatArray | None = None
    """[R] advantage of each response token."""
    rollout_log_probs: FloatArray | None = None
    """[R] engine log-probs at the sampling temperature."""
    old_log_probs: FloatArray | None = None
    """[R] log-probs of the old policy."""
    ref_log_probs: FloatArray | None = None
    """[R] log-probs of the reference policy."""

    @property
    def num_samples(self) -> int:
        """N."""
        return len(self.lengths)

    @property
    def sequence_offsets(self) -> IntArray:
        """[N + 1] start of each sequence in `tokens`."""
        return offsets(self.lengths)

    @property
    def response_offsets(self) -> IntArray:
        """[N + 1] start of each response in the response arrays."""
        return offsets(self.response_lengths)

    def select(self, indices: Sequence[int] | IntArray) -> TrainBatch:
        """The samples at `indices`, in that order."""
        wanted = np.asarray(indices, dtype=np.int64)
        sequence = _ragged_positions(self.sequence_offsets, wanted)
        response = _ragged_positions(self.response_offsets, wanted)

        def take(values: FloatArray | None) -> FloatArray | None:
            return None if values is None else values[response]

        return TrainBatch(
            tokens=self.tokens[sequence],
            lengths=self.lengths[wanted],
            response_lengths=self.response_lengths[wanted],
            loss_mask=self.loss_mask[response],
            sample_ids=self.sample_ids[wanted],
            advantages=take(self.advantages),
            rollout_log_probs=take(self.rollout_log_probs),
            old_log_probs=take(self.old_log_probs),
            ref_log_probs=take(self.ref_log_probs),
        )

    def with_fields(self, **fields: FloatArray | None) -> TrainBatch:
        """A copy with response arrays replaced.

        Raises:
            ValueError: an array does not have R entries.
        """
        total = int(self.response_lengths.sum())
        for name, values in fields.items():
            if values is not None and values.shape != (total,):
                raise ValueError(f"{name} has shape {values.shape}, the batch has {total} response tokens")
        return replace(self, **fields)  # type: ignore[arg-type]


def offsets(lengths: IntArray) -> IntArray:
    """[N + 1] exclusive prefix sums of `lengths`."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _ragged_positions(starts: IntArray, wanted: IntArray) -> IntArray:
    if len(wanted) == 0:
        return np.zeros(0, np.int64)
    return np.concatenate([np.arange(starts[i], starts[i + 1]) for i in wanted])


def batch_from_samples(samples: Sequence[Sample]) -> TrainBatch:
    """Arrays of generated samples (validated); advantages and trainer log-probs are filled in later."""
    for sample in samples:
        sample.validate()
    return TrainBatch(
        tokens=np.concatenate([np.asarray(s.prompt_token_ids + s.response_token_ids, np.int64) for s in samples]),
        lengths=np.array([len(s.prompt_token_ids) + len(s.response_token_ids) for s in samples], np.int64),
        response_lengths=np.array([len(s.response_token_ids) for s in samples], np.int64),
        loss_mask=np.concatenate([np.asarray(s.loss_mask, np.float32) for s in samples]),
        sample_ids=np.array([s.index for s in samples], np.int64),
        rollout_log_probs=np.concatenate([np.asarray(s.rollout_log_probs, np.float32) for s in samples]),
    )
