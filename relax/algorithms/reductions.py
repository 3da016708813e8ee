"""Reductions of per-token values to one scalar.

A reduction is a vector of per-token weights, computed once over the whole global batch. The loss is then a plain
sum Σ_t w_t · l_t, which no cut into micro-batches or data-parallel ranks can change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relax.config.schema import Reduction


def reduction_weights(
    loss_mask: npt.NDArray[np.float32], response_lengths: npt.NDArray[np.int64], reduction: Reduction
) -> npt.NDArray[np.float32]:
    """Per-token weights of `reduction` over a global batch.

    Args:
        loss_mask: [R] 1 for valid tokens, 0 for the others; responses one after the other.
        response_lengths: [N] tokens of each response, Σ = R.
        reduction: `token_mean` divides by the valid tokens of the whole batch; `sample_mean` is the mean over
            samples that have a valid token of their token means.

    Returns:
        [R] weights, zero on masked tokens; they sum to 1, or are all zero when no token is valid.

    Raises:
        ValueError: the lengths do not add up to R.
    """
    if int(response_lengths.sum()) != len(loss_mask):
        raise ValueError(f"response lengths add up to {int(response_lengths.sum())}, the mask has {len(loss_mask)}")
    mask = loss_mask.astype(np.float64)
    if reduction is Reduction.token_mean:
        denominators = np.full(len(mask), mask.sum())
    else:
        rows = np.repeat(np.arange(len(response_lengths)), response_lengths)
        valid_tokens = np.bincount(rows, weights=mask, minlength=len(response_lengths))
        denominators = valid_tokens[rows] * np.count_nonzero(valid_tokens)
    return np.divide(mask, denominators, out=np.zeros_like(mask), where=denominators > 0).astype(np.float32)
