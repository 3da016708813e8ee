"""Drawing tokens from counter-based random numbers: a draw depends on the request's seed and the position alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UINT64 = 2**64


def splitmix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The SplitMix64 output function, elementwise (Steele, Lea & Flood 2014, "Fast splittable PRNGs")."""
    with np.errstate(over="ignore"):
        z = values + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def mix_seeds(seed: int, indices: Sequence[int]) -> list[int]:
    """One 64-bit seed for each index, from the run's seed and the index; the order of the two matters."""
    start = splitmix64(np.array([seed % _UINT64], np.uint64))
    return splitmix64(start ^ np.array([index % _UINT64 for index in indices], np.uint64)).tolist()


def counter_uniforms(seeds: Sequence[int], num_positions: int) -> npt.NDArray[np.float64]:
    """[len(seeds), num_positions] uniforms in [0, 1): entry (i, t) depends on `seeds[i]` and t alone.

    They have 52 bits, so that u·total < total holds in float64 whatever the total.
    """
    keys = splitmix64(np.array([seed % _UINT64 for seed in seeds], np.uint64))
    with np.errstate(over="ignore"):
        counters = np.arange(1, num_positions + 1, dtype=np.uint64) * _GOLDEN
        bits = splitmix64(keys[:, None] ^ splitmix64(counters)[None, :])
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def draw_tokens(
    log_probs: torch.Tensor, uniforms: torch.Tensor, *, top_k: int = -1, top_p: float = 1.0
) -> torch.Tensor:
    """[B] ids by inverse CDF in token-id order.

    Args:
        log_probs: [B, V] fp32 log-probs of the full distribution.
        uniforms: [B] float64 in [0, 1).
        top_k: keep the k most likely ids; -1 keeps all.
        top_p: keep the fewest most likely ids whose mass reaches this.

    The sum runs in float64, so that fp32 rounding over a large vocabulary neither shifts the draw nor lets it reach an
    id of probability zero.
    """
    probs = log_probs.exp()
    if top_k != -1 or top_p < 1.0:
        probs = _keep_likely(probs, top_k=top_k, top_p=top_p)
    cdf = probs.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cdf, (uniforms * cdf[:, -1])[:, None], right=True)[:, 0]


def _keep_likely(probs: torch.Tensor, *, top_k: int, top_p: float) -> torch.Tensor:
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    if top_k != -1:
        ordered[:, top_k:] = 0.0
    if top_p < 1.0:  # of what top-k left, renormalised: the order that SGLang and transformers use
        mass = ordered.cumsum(-1, dtype=torch.float64)
        before = mass - ordered
        ordered = ordered.masked_fill(before >= top_p * mass[:, -1:], 0.0)
    return torch.zeros_like(probs).scatter_(1, ids, ordered)
