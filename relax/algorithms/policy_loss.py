"""Policy losses over the response tokens of one micro-batch: pure functions of tensors.

Every value is a weighted sum over tokens with the reduction's weights, so that sums over micro-batches and ranks
give the global batch's loss and metrics (see `reductions`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from relax.algorithms.importance import importance_weights, segment_mean
from relax.algorithms.kl import LOG_RATIO_BOUND, kl_estimate
from relax.config.schema import AlgorithmConfig, ImportanceKind, LossConfig, LossKind

_INDEX_FIELDS = ("weights", "sample_index")
"""Fields of `PolicyTokens` that hold no value of a token."""


@dataclass(frozen=True)
class PolicyTokens:
    """R response tokens of one micro-batch; all tensors are [R]."""

    log_probs: torch.Tensor
    """Current policy, with graph."""
    old_log_probs: torch.Tensor
    """Old policy."""
    advantages: torch.Tensor
    """Advantage of each token."""
    weights: torch.Tensor
    """Reduction weights; zero on masked tokens."""
    sample_index: torch.Tensor
    """int64, sample of each token within the micro-batch."""
    rollout_log_probs: torch.Tensor | None = None
    """Engine's log-probs."""
    ref_log_probs: torch.Tensor | None = None
    """Reference policy."""
    entropy: torch.Tensor | None = None
    """Entropy of the current policy; with graph when it has a coefficient."""


def weighted_sum(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Σ w · v; masked tokens (w = 0) contribute exactly 0 whatever their value."""
    return (torch.where(weights > 0, values, 0.0) * weights).sum()


def without_masked(tokens: PolicyTokens) -> PolicyTokens:
    """The tokens with every value at a masked position (weight 0) replaced by 0.

    A token that the model did not write may carry anything (an engine gives NaN or −inf there). Masking a term's
    value alone is not enough: its backward multiplies the zero gradient by the odd value, and 0 · inf is NaN.
    """
    mask = tokens.weights > 0
    values = {item.name: vars(tokens)[item.name] for item in fields(tokens) if item.name not in _INDEX_FIELDS}
    return replace(
        tokens, **{name: torch.where(mask, value, 0.0) for name, value in values.items() if value is not None}
    )


def surrogate(
    ratio: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token policy loss and whether the clip decided it.

    `clipped` and `gspo` (whose ratio is the sequence's): max(−rA, −clip(r, 1−ε, 1+ε_high)A), for A < 0 bounded by
    −c·A under dual clip. `cispo`: −sg(clip(r))·A·log-prob.

    Args:
        ratio: [R] importance ratio.
        log_probs: [R] current log-probs.
        advantages: [R].
        config: clip bounds.

    Returns:
        [R] loss and [R] bool.
    """
    clipped_ratio = ratio.clamp(1 - config.eps_clip, 1 + config.eps_clip_high)
    if config.kind is LossKind.cispo:
        return -clipped_ratio.detach() * advantages * log_probs, ratio != clipped_ratio
    unclipped = -ratio * advantages
    clipped = -clipped_ratio * advantages
    loss = torch.maximum(unclipped, clipped)
    was_clipped = clipped > unclipped
    if config.dual_clip is not None:
        bound = -config.dual_clip * advantages
        dual = (advantages < 0) & (loss > bound)
        loss = torch.where(dual, bound, loss)
        was_clipped = was_clipped | dual
    return loss, was_clipped


def policy_loss(tokens: PolicyTokens, config: AlgorithmConfig) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of one micro-batch and its metrics.

    Args:
        tokens: the micro-batch.
        config: the algorithm.

    Returns:
        The scalar Σ w·l with graph, and detached scalars that add up over micro-batches and data-parallel ranks.

    Raises:
        ValueError: a term needs log-probs that the batch does not carry.
    """
    tokens = without_masked(tokens)
    weights, mask = tokens.weights, tokens.weights > 0
    log_ratio = tokens.log_probs - tokens.old_log_probs
    token_ratio = ratio = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    if config.loss.kind is LossKind.gspo:
        sequence_log_ratio = segment_mean(log_ratio, mask, tokens.sample_index)
        ratio = sequence_log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    per_token, was_clipped = surrogate(ratio, tokens.log_probs, tokens.advantages, config.loss)

    metrics: dict[str, torch.Tensor] = {}
    if config.importance.kind is not ImportanceKind.none:
        rollout_log_probs = _required(tokens.rollout_log_probs, "rollout_log_probs", "algorithm.importance.kind")
        correction = importance_weights(
            tokens.old_log_probs, rollout_log_probs, mask, tokens.sample_index, config.importance
        )
        per_token = per_token * correction
        metrics["tis_weight"] = weighted_sum(correction, weights)
        metrics["tis_weight_square"] = weighted_sum(correction.square(), weights)
    pg_loss = weighted_sum(per_token, weights)
    loss = pg_loss
    if config.kl.loss_coef != 0:
        ref_log_probs = _required(tokens.ref_log_probs, "ref_log_probs", "algorithm.kl.loss_coef")
        # the estimator is a token's, under GSPO too
        per_token_kl = kl_estimate(tokens.log_probs, ref_log_probs, config.kl.kind, ratio=token_ratio)
        kl = weighted_sum(per_token_kl, weights)
        loss = loss + config.kl.loss_coef * kl
        metrics["kl_loss"] = kl
    if config.loss.entropy_coef != 0:
        entropy = weighted_sum(_required(tokens.entropy, "entropy", "algorithm.loss.entropy_coef"), weights)
        loss = loss - config.loss.entropy_coef * entropy
    if tokens.entropy is not None:
        metrics["entropy"] = weighted_sum(tokens.entropy, weights)
    metrics |= {
        "loss": loss,
        "pg_loss": pg_loss,
        "pg_clipfrac": weighted_sum(was_clipped.to(weights.dtype), weights),
        "ppo_kl": weighted_sum(tokens.old_log_probs - tokens.log_probs, weights),
    }
    if tokens.rollout_log_probs is not None:
        gap = (tokens.old_log_probs - tokens.rollout_log_probs).abs()
        metrics["train_rollout_logprob_abs_diff"] = weighted_sum(gap, weights)
    return loss, {name: value.detach() for name, value in metrics.items()}


def finish_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Metrics of the global batch from their sums over micro-batches and ranks.

    The effective sample size of the importance weights is (Σ w·x)² / Σ w·x², a share of the batch in (0, 1].
    """
    finished = dict(sums)
    weight, square = finished.pop("tis_weight", None), finished.pop("tis_weight_square", None)
    if weight is not None and square is not None:
        finished["tis_ess"] = weight * weight / square if square > 0 else 0.0
    return finished


def _required(values: torch.Tensor | None, name: str, option: str) -> torch.Tensor:
    if values is None:
        raise ValueError(f"{option} needs {name}, and the batch carries none")
    return values
