"""Group advantages of GRPO and the per-token KL penalty, on the host (NumPy) where rewards arrive."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relax.algorithms.kl import kl_estimate
from relax.config.schema import AdvantageConfig, KlConfig

STD_EPSILON = 1e-6
"""Added to the group's standard deviation before the division."""

EQUAL_REWARD_TOLERANCE = 1e-6
"""Groups whose rewards differ by no more than this, relative to max(1, max|R|), count as equal."""


def equal_reward_groups(rewards: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """[G] which groups of `rewards` [G, n] are equal up to float noise."""
    spread = rewards.max(axis=1) - rewards.min(axis=1)
    return spread <= EQUAL_REWARD_TOLERANCE * np.maximum(1.0, np.abs(rewards).max(axis=1))


def group_advantages(rewards: npt.NDArray[np.float64], config: AdvantageConfig) -> npt.NDArray[np.float32]:
    """GRPO advantage of every sample (Shao et al. 2024, arXiv:2402.03300, outcome supervision).

    A centred group of equal rewards has advantage exactly 0.0: float noise in a mean must never be divided by a
    float-noise standard deviation.

    Args:
        rewards: [G, n] rewards of G groups.
        config: `center` subtracts the group mean; `normalize_std` divides by std (ddof 1) + 1e-6 when n > 1.

    Returns:
        [G, n] advantages.

    Raises:
        ValueError: a reward is NaN or infinite.
    """
    if not np.isfinite(rewards).all():
        raise ValueError(f"{int((~np.isfinite(rewards)).sum())} of {rewards.size} rewards are not finite")
    advantages = rewards.astype(np.float64)
    if config.center:
        advantages = advantages - advantages.mean(axis=1, keepdims=True)
    if config.normalize_std and rewards.shape[1] > 1:
        advantages = advantages / (rewards.std(axis=1, ddof=1, keepdims=True) + STD_EPSILON)
    equal = equal_reward_groups(rewards)
    if config.center:
        advantages[equal] = 0.0
    elif config.normalize_std:
        # an uncentred group of equal rewards has no scale to divide by: it keeps R
        advantages[equal] = rewards[equal]
    return advantages.astype(np.float32)


def apply_kl_penalty(
    advantages: npt.NDArray[np.float32],
    old_log_probs: npt.NDArray[np.float32],
    ref_log_probs: npt.NDArray[np.float32],
    config: KlConfig,
) -> npt.NDArray[np.float32]:
    """Subtract `penalty_coef` · KL(old ‖ reference) from each token's advantage, after the group normalisation.

    All arrays are [R]. The ratio in the `unbiased` estimator is 1 here, since the old policy drew the tokens.
    """
    import torch

    old = torch.from_numpy(np.ascontiguousarray(old_log_probs))
    ref = torch.from_numpy(np.ascontiguousarray(ref_log_probs))
    penalty = kl_estimate(old, ref, config.kind, ratio=torch.ones_like(old))
    return (advantages - config.penalty_coef * penalty.numpy()).astype(np.float32)
