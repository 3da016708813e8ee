from __future__ import annotations

import math

import pytest
import torch

from relax.algorithms.importance import importance_weights, segment_mean, segment_sum
from relax.config.schema import ImportanceConfig, ImportanceKind

# ratios: sample 0 has 3, 0.4 and a masked token; sample 1 has 1.5 and 0.25
RATIOS = torch.tensor([3.0, 0.4, 7.0, 1.5, 0.25])
MASK = torch.tensor([True, True, False, True, True])
SAMPLES = torch.tensor([0, 0, 0, 1, 1])


def weights_of(kind: ImportanceKind, **options: float) -> list[float]:
    rollout = torch.tensor([-1.0, -2.0, float("nan"), -0.5, -3.0])
    weights = importance_weights(rollout + RATIOS.log(), rollout, MASK, SAMPLES, ImportanceConfig(kind=kind, **options))
    return weights.tolist()


def test_tis_cuts_at_the_cap_and_leaves_the_rest() -> None:
    assert weights_of(ImportanceKind.tis, cap=2.0) == pytest.approx([2.0, 0.4, 1.0, 1.5, 0.25])


def test_icepop_drops_tokens_outside_the_bounds() -> None:
    assert weights_of(ImportanceKind.icepop, low=0.3, high=2.0) == pytest.approx([0.0, 0.4, 1.0, 1.5, 0.0])


def test_bounds_are_inclusive() -> None:
    zero = torch.zeros(2)
    config = ImportanceConfig(kind=ImportanceKind.icepop, low=1.0, high=1.0)
    assert importance_weights(zero, zero, torch.ones(2, dtype=torch.bool), zero.long(), config).tolist() == [1, 1]


def test_geometric_uses_the_mean_log_ratio_of_the_valid_tokens() -> None:
    first, second = math.sqrt(3.0 * 0.4), math.sqrt(1.5 * 0.25)
    assert weights_of(ImportanceKind.geometric, low=0.5, high=2.0) == pytest.approx([first] * 3 + [second] * 2)
    assert weights_of(ImportanceKind.geometric, low=0.7, high=2.0) == pytest.approx([first] * 3 + [0.0] * 2)


def test_sequence_uses_the_product_of_the_valid_ratios() -> None:
    assert weights_of(ImportanceKind.sequence, low=0.1, high=2.0) == pytest.approx([1.2] * 3 + [0.375] * 2)
    assert weights_of(ImportanceKind.sequence, low=0.5, high=2.0) == pytest.approx([1.2] * 3 + [0.0] * 2)


@pytest.mark.parametrize("kind", [kind for kind in ImportanceKind if kind is not ImportanceKind.none])
def test_weights_are_detached_and_finite_for_absurd_gaps(kind: ImportanceKind) -> None:
    old = torch.tensor([0.0, -500.0], requires_grad=True)
    config = ImportanceConfig(kind=kind, low=1e-30, high=1e30, cap=1e30)
    weights = importance_weights(
        old, torch.tensor([-500.0, 0.0]), torch.ones(2, dtype=torch.bool), torch.tensor([0, 1]), config
    )
    assert not weights.requires_grad
    assert torch.isfinite(weights).all()


def test_segments_reduce_over_each_sample_alone() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    assert segment_sum(values, SAMPLES).tolist() == [7, 7, 7, 24, 24]
    assert segment_mean(values, MASK, SAMPLES).tolist() == [1.5, 1.5, 1.5, 12, 12]


def test_segment_mean_of_a_wholly_masked_sample_is_zero() -> None:
    mask = torch.tensor([False, False, False, True, True])
    assert segment_mean(torch.full((5,), 3.0), mask, SAMPLES).tolist() == [0, 0, 0, 3, 3]
