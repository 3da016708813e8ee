"""Importance weights that correct for tokens drawn by the engine and scored by the trainer."""

from __future__ import annotations

import torch

from relax.algorithms.kl import LOG_RATIO_BOUND
from relax.config.schema import ImportanceConfig, ImportanceKind


def segment_sum(values: torch.Tensor, sample_index: torch.Tensor) -> torch.Tensor:
    """Sum of `values` [R] over each token's sample, given back to every token: [R]."""
    # one slot a token is always enough for the samples, and needs no device sync to know their number
    sums = torch.zeros_like(values).index_add(0, sample_index, values)
    return sums.index_select(0, sample_index)


def segment_mean(values: torch.Tensor, mask: torch.Tensor, sample_index: torch.Tensor) -> torch.Tensor:
    """Mean of `values` over the valid tokens of each token's sample, given back to every token: [R]."""
    totals = segment_sum(torch.where(mask, values, 0.0), sample_index)
    counts = segment_sum(mask.to(values.dtype), sample_index)
    return totals / counts.clamp_min(1.0)


def importance_weights(
    old_log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor,
    sample_index: torch.Tensor,
    config: ImportanceConfig,
) -> torch.Tensor:
    """Detached weights exp(old − rollout) in one of these forms.

    `tis`: min(w, cap) (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training");
    `icepop`: w inside [low, high], else 0 (Ling team 2025, "IcePop"); `geometric` and `sequence`: the same mask on
    the sample's geometric-mean or product ratio, which is then the weight of all its tokens.

    Args:
        old_log_probs: [R] trainer's log-probs of the old policy.
        rollout_log_probs: [R] engine's log-probs.
        mask: [R] bool, valid tokens.
        sample_index: [R] sample of each token.
        config: kind and bounds.

    Returns:
        [R] weights.
    """
    with torch.no_grad():
        log_ratio = torch.where(mask, old_log_probs - rollout_log_probs, 0.0)
        if config.kind is ImportanceKind.geometric:
            log_ratio = segment_mean(log_ratio, mask, sample_index)
        elif config.kind is ImportanceKind.sequence:
            log_ratio = segment_sum(log_ratio, sample_index)
        weights = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
        if config.kind is ImportanceKind.tis:
            return weights.clamp_max(config.cap)
        inside = (weights >= config.low) & (weights <= config.high)
        return torch.where(inside, weights, 0.0)
