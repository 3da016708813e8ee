from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.algorithms.advantages import STD_EPSILON, apply_kl_penalty, equal_reward_groups, group_advantages
from relax.config.schema import AdvantageConfig, KlConfig, KlKind

rewards_of_groups = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(-4, 4), min_size=n, max_size=n), min_size=1, max_size=5)
)


@settings(deadline=None, max_examples=50)
@given(rows=rewards_of_groups)
def test_advantage_is_the_formula_with_ddof_1(rows: list[list[int]]) -> None:
    rewards = np.array(rows, np.float64)
    expected = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + STD_EPSILON)
    np.testing.assert_allclose(group_advantages(rewards, AdvantageConfig()), expected, atol=1e-6)


def test_groups_do_not_influence_each_other() -> None:
    rewards = np.array([[0.0, 1.0, 1.0], [5.0, 2.0, 9.0]])
    together = group_advantages(rewards, AdvantageConfig())
    apart = [group_advantages(rewards[[row]], AdvantageConfig())[0] for row in (0, 1)]
    np.testing.assert_array_equal(together, np.stack(apart))


def test_known_value_uses_the_sample_standard_deviation() -> None:
    # std of (0, 1) is 1/√2 with ddof 1, and would be 1/2 with ddof 0
    advantages = group_advantages(np.array([[0.0, 1.0]]), AdvantageConfig())
    np.testing.assert_allclose(advantages, [[-0.5 * 2**0.5, 0.5 * 2**0.5]], rtol=1e-5)


@pytest.mark.parametrize(
    "group",
    [
        [0.1 + 0.2, 0.3, 0.3],
        [0.0, 0.0],
        [1.0, 1.0 + 5e-7, 1.0],
        [1e6, 1e6 + 0.5, 1e6],
        [-1e12, -1e12 + 0.001],
        [1e-9, 2e-9],
        [0.7],
    ],
)
@pytest.mark.parametrize("normalize_std", [True, False])
def test_rewards_equal_up_to_float_noise_give_exactly_zero(group: list[float], normalize_std: bool) -> None:
    rewards = np.array([group])
    assert equal_reward_groups(rewards).all()
    advantages = group_advantages(rewards, AdvantageConfig(normalize_std=normalize_std))
    assert (advantages == 0.0).all()


@pytest.mark.parametrize("group", [[0.0, 1e-5], [1.0, 1.0 + 3e-6], [1e6, 1e6 + 2.0]])
def test_rewards_that_differ_beyond_noise_keep_an_advantage(group: list[float]) -> None:
    rewards = np.array([group])
    assert not equal_reward_groups(rewards).any()
    assert (group_advantages(rewards, AdvantageConfig()) != 0).all()


def test_center_off_divides_raw_rewards_and_keeps_equal_groups() -> None:
    rewards = np.array([[1.0, 3.0], [2.0, 2.0]])
    advantages = group_advantages(rewards, AdvantageConfig(center=False))
    np.testing.assert_allclose(advantages, [[1 / 2**0.5, 3 / 2**0.5], [2.0, 2.0]], rtol=1e-5)


def test_normalize_off_only_centres() -> None:
    advantages = group_advantages(np.array([[1.0, 3.0]]), AdvantageConfig(normalize_std=False))
    assert advantages.tolist() == [[-1.0, 1.0]]


def test_both_off_is_the_reward_itself() -> None:
    rewards = np.array([[0.25, 3.0], [2.0, 2.0]])
    config = AdvantageConfig(center=False, normalize_std=False)
    assert group_advantages(rewards, config).tolist() == rewards.tolist()


@pytest.mark.parametrize("center", [True, False])
def test_group_of_one_is_not_divided(center: bool) -> None:
    advantages = group_advantages(np.array([[0.5], [2.0]]), AdvantageConfig(center=center))
    assert advantages.tolist() == ([[0.0], [0.0]] if center else [[0.5], [2.0]])


def test_input_is_left_alone_and_integer_rewards_work() -> None:
    rewards = np.array([[0, 1]])
    group_advantages(rewards, AdvantageConfig())
    assert rewards.tolist() == [[0, 1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_reward_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="1 of 4 rewards are not finite"):
        group_advantages(np.array([[0.0, 1.0], [bad, 0.0]]), AdvantageConfig())


@pytest.mark.parametrize("kind", list(KlKind))
def test_kl_penalty_is_subtracted_a_token(kind: KlKind) -> None:
    rng = np.random.default_rng(0)
    advantages, old, ref = (rng.normal(size=7).astype(np.float32) for _ in range(3))
    difference = old.astype(np.float64) - ref
    k3 = np.exp(-difference) - 1 + difference
    penalty = {"k1": difference, "k2": difference**2 / 2, "k3": k3, "unbiased": k3}[kind.value]
    result = apply_kl_penalty(advantages, old, ref, KlConfig(kind=kind, penalty_coef=0.25))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, advantages - 0.25 * penalty, rtol=1e-5, atol=1e-6)
