"""Log-probs and entropy from logits that are sharded over the vocabulary."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region


def _reduce(values: torch.Tensor) -> torch.Tensor:
    """Sum over the tensor-parallel ranks with an identity backward (every rank computes the same loss from it)."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return values
    return reduce_from_tensor_model_parallel_region(values)


def vocab_parallel_log_probs(
    logits: torch.Tensor, targets: torch.Tensor, *, temperature: float, vocab_size: int, entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs of `targets` under softmax(logits / temperature), in fp32, and the entropy of that distribution.

    Args:
        logits: [R, V / tp] this rank's columns of the padded vocabulary.
        targets: [R] ids in the whole vocabulary.
        temperature: the sampling temperature, so that trainer and engine mean the same distribution.
        vocab_size: columns of the unpadded vocabulary; the padding never enters a sum.
        entropy: compute the entropy too.

    Returns:
        [R] log-probs and [R] entropy (or None), both with graph.
    """
    start = parallel_state.get_tensor_model_parallel_rank() * logits.shape[1]
    local_columns = min(logits.shape[1], max(0, vocab_size - start))
    scaled = logits[:, :local_columns].float() / temperature
    shift = scaled.detach().amax(dim=1)
    if parallel_state.get_tensor_model_parallel_world_size() > 1:
        dist.all_reduce(shift, op=dist.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group())
    shifted = scaled - shift[:, None]
    exponentials = shifted.exp()
    normalizer = _reduce(exponentials.sum(dim=1))
    local_targets = targets - start
    owned = (local_targets >= 0) & (local_targets < local_columns)
    picked = shifted.gather(1, local_targets.clamp(0, max(0, local_columns - 1))[:, None])[:, 0]
    log_normalizer = normalizer.log()
    log_probs = _reduce(torch.where(owned, picked, 0.0)) - log_normalizer
    if not entropy:
        return log_probs, None
    # H = log Z − E[x], with x the shifted logits
    mean_logit = _reduce((exponentials * shifted).sum(dim=1)) / normalizer
    return log_probs, log_normalizer - mean_logit
