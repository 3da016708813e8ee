from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.algorithms.reductions import reduction_weights
from relax.config.schema import Reduction

REDUCTIONS = list(Reduction)


@st.composite
def masked_batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mask, lengths, per-token losses) of a ragged batch; some responses are wholly masked."""
    lengths = np.array(draw(st.lists(st.integers(1, 9), min_size=1, max_size=12)), np.int64)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    mask = (rng.random(lengths.sum()) < draw(st.sampled_from([0.1, 0.5, 1.0]))).astype(np.float32)
    return mask, lengths, rng.normal(size=lengths.sum())


def plain_definition(mask: np.ndarray, lengths: np.ndarray, losses: np.ndarray, reduction: Reduction) -> float:
    if reduction is Reduction.token_mean:
        return float((mask * losses).sum() / max(1.0, mask.sum()))
    ends = np.cumsum(lengths)
    means = [
        losses[end - n : end][mask[end - n : end] > 0].mean()
        for end, n in zip(ends, lengths)
        if mask[end - n : end].any()
    ]
    return float(np.mean(means)) if means else 0.0


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(deadline=None, max_examples=40)
@given(batch=masked_batches())
def test_weights_sum_to_one_and_vanish_on_masked_tokens(reduction: Reduction, batch: tuple) -> None:
    mask, lengths, _ = batch
    weights = reduction_weights(mask, lengths, reduction)
    assert weights.dtype == np.float32
    assert (weights[mask == 0] == 0).all()
    assert (weights[mask > 0] > 0).all()
    assert weights.sum(dtype=np.float64) == pytest.approx(1.0 if mask.any() else 0.0, abs=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(deadline=None, max_examples=40)
@given(batch=masked_batches())
def test_weighted_sum_is_the_plain_definition(reduction: Reduction, batch: tuple) -> None:
    mask, lengths, losses = batch
    weights = reduction_weights(mask, lengths, reduction)
    assert float((weights * losses).sum()) == pytest.approx(
        plain_definition(mask, lengths, losses, reduction), abs=1e-6
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(deadline=None, max_examples=40)
@given(batch=masked_batches(), parts=st.integers(1, 6), seed=st.integers(0, 999))
def test_sum_is_invariant_to_any_cut_into_micro_batches_and_ranks(
    reduction: Reduction, batch: tuple, parts: int, seed: int
) -> None:
    mask, lengths, losses = batch
    weights = reduction_weights(mask, lengths, reduction)
    owner = np.repeat(np.random.default_rng(seed).integers(0, parts, len(lengths)), lengths)
    total = sum(float((weights * losses)[owner == part].sum()) for part in range(parts))
    assert total == pytest.approx(plain_definition(mask, lengths, losses, reduction), abs=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_batch_without_a_valid_token_has_zero_weights(reduction: Reduction) -> None:
    weights = reduction_weights(np.zeros(5, np.float32), np.array([2, 3]), reduction)
    assert weights.tolist() == [0.0] * 5


def test_sample_mean_counts_only_samples_with_a_valid_token() -> None:
    mask = np.array([1, 0, 0, 0, 1, 1], np.float32)
    weights = reduction_weights(mask, np.array([2, 2, 2]), Reduction.sample_mean)
    assert weights.tolist() == [0.5, 0, 0, 0, 0.25, 0.25]


def test_lengths_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 4, the mask has 5"):
        reduction_weights(np.ones(5, np.float32), np.array([2, 2]), Reduction.token_mean)
