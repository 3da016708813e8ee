"""Refusal of requests that would fail (or, on a GPU, kill the process) in the middle of a forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from relax.rollout.protocol import GenerateRequest, SamplingParams


def check_requests(requests: Sequence[GenerateRequest], *, vocab_size: int, max_positions: int) -> None:
    """Raise ValueError, naming the request, for ids outside the vocabulary, an empty prompt, a prompt and response that
    exceed the model's positions, or sampling parameters out of range."""
    checked: set[SamplingParams] = set()
    for i, request in enumerate(requests):
        sampling = request.sampling
        if sampling not in checked:
            check_sampling(sampling)
            checked.add(sampling)
        check_ids(request.prompt_token_ids, name=f"request {i}: the prompt", vocab_size=vocab_size)
        needed = len(request.prompt_token_ids) + sampling.max_response_len
        if needed > max_positions:
            raise ValueError(
                f"request {i}: prompt of {len(request.prompt_token_ids)} tokens + "
                f"max_response_len={sampling.max_response_len} = {needed} exceeds the model's "
                f"max_position_embeddings={max_positions}; lower rollout.max_response_len or data.max_prompt_len"
            )


def check_sequences(sequences: Sequence[list[int]], *, vocab_size: int, max_positions: int) -> None:
    """The same for sequences to score."""
    for i, ids in enumerate(sequences):
        check_ids(ids, name=f"sequence {i}", vocab_size=vocab_size)
        if len(ids) > max_positions:
            raise ValueError(f"sequence {i}: {len(ids)} tokens exceed max_position_embeddings={max_positions}")


def check_ids(ids: Sequence[int], *, name: str, vocab_size: int) -> None:
    """Raise ValueError for an empty list or an id outside [0, vocab_size)."""
    if not ids:
        raise ValueError(f"{name} is empty; it needs at least one token")
    if min(ids) < 0 or max(ids) >= vocab_size:
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise ValueError(f"{name} holds token id {bad}; the model has ids 0 … {vocab_size - 1} (another tokenizer?)")


def check_temperature(temperature: float) -> None:
    """Raise ValueError unless finite and at least 0."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"rollout.temperature={temperature} must be finite and at least 0 (0 is greedy)")


def check_sampling(sampling: SamplingParams) -> None:
    """Raise ValueError for a parameter out of range."""
    check_temperature(sampling.temperature)
    if sampling.max_response_len < 1:
        raise ValueError(f"rollout.max_response_len={sampling.max_response_len} must be at least 1")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"rollout.top_p={sampling.top_p} must be in (0, 1]")
    if sampling.top_k != -1 and sampling.top_k < 1:
        raise ValueError(f"rollout.top_k={sampling.top_k} must be at least 1, or -1 for all")
