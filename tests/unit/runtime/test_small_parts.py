"""Cadence, pass@k and work estimates."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.config.cadence import due
from relax.config.flops import forward_flops, linear_parameters
from relax.config.schema import ArchConfig
from relax.runtime.evaluation import pass_at_k


@given(st.integers(1, 30), st.integers(1, 200))
def test_an_interval_is_due_once_every_so_many_rollouts(interval: int, total: int) -> None:
    assert sum(due(rollout, interval) for rollout in range(total)) == total // interval
    assert not any(due(rollout, None) for rollout in range(total))


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(passes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passes)))
    subsets = [any(subset) for subset in itertools.combinations(passes, k)]
    assert math.isclose(pass_at_k(np.array([passes]), k), sum(subsets) / len(subsets))


def test_pass_at_k_refuses_more_than_there_are() -> None:
    with pytest.raises(ValueError, match="pass@3"):
        pass_at_k(np.ones((1, 2), bool), 3)


def test_forward_work_counts_every_matrix() -> None:
    arch = ArchConfig()
    by_hand = 2 * (64 * 16 * (4 + 2 + 2 + 4) + 3 * 64 * 128) + 64 * 32
    assert linear_parameters(arch) == by_hand
    assert forward_flops(arch, [1]) == 2 * by_hand + 2 * 2 * 4 * 16
    assert forward_flops(arch, [3, 5]) == forward_flops(arch, [3]) + forward_flops(arch, [5])
