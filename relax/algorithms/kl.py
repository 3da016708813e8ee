"""Estimators of the KL divergence from the policy to the reference, per token."""

from __future__ import annotations

import torch

from relax.config.schema import KlKind

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to ± this before an exponential, so that one odd token cannot overflow the batch."""


def kl_estimate(
    log_probs: torch.Tensor, ref_log_probs: torch.Tensor, kind: KlKind, *, ratio: torch.Tensor
) -> torch.Tensor:
    """Per-token KL estimate with d = log_probs − ref_log_probs (Schulman 2020, "Approximating KL divergence").

    k1 = d; k2 = d²/2; k3 = exp(−d) − 1 + d; unbiased = r · k3 with the importance ratio r of the tokens.

    Args:
        log_probs: [R] current policy.
        ref_log_probs: [R] reference policy.
        kind: estimator.
        ratio: [R] exp(log_probs − old_log_probs), used by `unbiased` alone.

    Returns:
        [R] estimates.
    """
    difference = (log_probs - ref_log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    if kind is KlKind.k1:
        return difference
    if kind is KlKind.k2:
        return difference.square() / 2
    k3 = torch.expm1(-difference) + difference
    return ratio * k3 if kind is KlKind.unbiased else k3
