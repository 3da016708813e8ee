"""The decode loop of the embedded engine: one batch of requests through a transformers causal LM with a KV cache.

Identical prompts of a batch (a group) are prefilled once; the cache then has its final size, so that a step writes one
column instead of copying everything; finished rows leave the batch. Knows nothing of locks, versions or rewards.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from relax.rollout.protocol import GenerateRequest
from relax.rollout.sampling import counter_uniforms, draw_tokens

COMPACT_BELOW = 0.75
"""Finished rows leave the batch when at most this share of its rows is alive; gathering the cache costs a copy."""


@dataclass(frozen=True)
class Decoded:
    """One response: ids (stop token included), their log-probs, and whether it stopped by itself."""

    token_ids: list[int]
    log_probs: list[float]
    stopped: bool


class CausalModel:
    """The few calls the engine makes, whatever the transformers version names the cache argument."""

    def __init__(self, model: PreTrainedModel) -> None:
        layer_types = getattr(model.config, "layer_types", None) or []
        if any(kind != "full_attention" for kind in layer_types):
            raise ValueError(f"the embedded engine supports full attention only; the layers are {set(layer_types)}")
        self.model = model
        self.device = model.device
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def new_cache(self) -> DynamicCache:
        """An empty cache."""
        return DynamicCache(config=self.model.config)

    def logits(
        self,
        ids: torch.Tensor,
        *,
        positions: torch.Tensor,
        mask: torch.Tensor | None = None,
        cache: DynamicCache | None = None,
        last_only: bool,
    ) -> torch.Tensor:
        """[B, L or 1, V] fp32 logits.

        Args:
            ids: [B, L] token ids.
            positions: [B, L] rotary positions.
            mask: [B, 1, L, keys] True where a query sees a key; None is plain causal.
            cache: filled with the keys of `ids`.
            last_only: logits of the last position only.
        """
        extra: dict[str, Any] = {} if cache is None else {self._cache_name: cache}
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=cache is not None,
            logits_to_keep=1 if last_only else 0,
            **extra,
        )
        return output.logits.float()


def log_softmax_at(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """fp32 log-probs at `temperature`; 0 (greedy) reports those at temperature 1."""
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1)


class _InPlaceUpdate:
    """Replaces `DynamicLayer.update` (which copies the whole cache each step) on one prefilled layer.

    The layer gets the prefilled rows `rows` (repeats allowed) and room for `capacity` tokens in all.
    """

    def __init__(self, layer: Any, rows: torch.Tensor, capacity: int) -> None:
        self._layer = layer
        self._length = layer.keys.shape[-2]
        self._keys = self._buffer(layer.keys, rows, capacity)
        self._values = self._buffer(layer.values, rows, capacity)
        self._show()

    def _buffer(self, prefilled: torch.Tensor, rows: torch.Tensor, capacity: int) -> torch.Tensor:
        _, heads, length, width = prefilled.shape
        buffer = prefilled.new_empty(len(rows), heads, capacity, width)
        buffer[:, :, :length] = prefilled[rows]
        return buffer

    def _show(self) -> None:
        self._layer.keys = self._keys[:, :, : self._length]
        self._layer.values = self._values[:, :, : self._length]

    def __call__(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, self._length = self._length, self._length + keys.shape[-2]
        self._keys[:, :, start : self._length] = keys
        self._values[:, :, start : self._length] = values
        self._show()
        return self._layer.keys, self._layer.values

    def select(self, rows: torch.Tensor) -> None:
        """Keep the batch rows `rows`."""
        self._keys, self._values = self._keys[rows], self._values[rows]
        self._show()


@torch.inference_mode()
def decode_batch(
    model: CausalModel, requests: Sequence[GenerateRequest], *, stop_ids: frozenset[int], pad_id: int
) -> list[Decoded]:
    """Responses to `requests`, in order. All share temperature, top_p and top_k; lengths and caps may differ."""
    sampling = requests[0].sampling
    caps = np.array([r.sampling.max_response_len for r in requests], np.int64)
    count, cap = len(requests), int(caps.max())
    uniforms = torch.from_numpy(counter_uniforms([r.seed for r in requests], cap)).to(model.device)
    tokens = np.zeros((count, cap), np.int64)
    log_probs = np.zeros((count, cap), np.float32)
    lengths = np.zeros(count, np.int64)
    stopped = np.zeros(count, bool)
    stops = np.array(sorted(stop_ids), np.int64)

    logits, cache, next_positions, visible = _prefill(model, requests, cap=cap, pad_id=pad_id)
    rows = np.arange(count)  # requests that the batch rows belong to
    for step in range(cap):
        scaled = log_softmax_at(logits, sampling.temperature)
        if sampling.temperature == 0.0:
            drawn = scaled.argmax(-1)
        else:
            row_uniforms = uniforms[:, step] if len(rows) == count else uniforms[torch.from_numpy(rows), step]
            drawn = draw_tokens(scaled, row_uniforms, top_k=sampling.top_k, top_p=sampling.top_p)
        chosen = scaled.gather(1, drawn[:, None])[:, 0].cpu().numpy()
        ids = drawn.cpu().numpy()
        alive = ~stopped[rows] & (lengths[rows] < caps[rows])
        live = rows[alive]
        tokens[live, step], log_probs[live, step] = ids[alive], chosen[alive]
        lengths[live] += 1
        stopped[live] = np.isin(ids[alive], stops)
        alive = ~stopped[rows] & (lengths[rows] < caps[rows])
        num_alive = int(alive.sum())
        if num_alive == 0:
            break
        if num_alive <= COMPACT_BELOW * len(rows):
            keep = torch.from_numpy(np.flatnonzero(alive)).to(model.device)
            for layer in cache.layers:
                layer.update.select(keep)
            drawn, next_positions = drawn[keep], next_positions[keep]
            visible = None if visible is None else visible[keep]
            rows = rows[alive]
        key_count = cache.get_seq_length() + 1
        mask = None if visible is None else visible[:, None, None, :key_count]
        logits = model.logits(drawn[:, None], positions=next_positions, mask=mask, cache=cache, last_only=True)[:, -1]
        next_positions = next_positions + 1
    return [Decoded(tokens[i, :n].tolist(), log_probs[i, :n].tolist(), bool(stopped[i])) for i, n in enumerate(lengths)]


def _prefill(
    model: CausalModel, requests: Sequence[GenerateRequest], *, cap: int, pad_id: int
) -> tuple[torch.Tensor, DynamicCache, torch.Tensor, torch.Tensor | None]:
    """Run the distinct prompts, left-padded, and spread the result over the requests.

    Returns:
        [B, V] logits after the prompt; the cache with B rows and room for `cap` tokens; [B, 1] next positions;
        [B, width + cap] which keys are real (None when no prompt is padded).
    """
    distinct: dict[tuple[int, ...], int] = {}
    of_request = torch.tensor([distinct.setdefault(tuple(r.prompt_token_ids), len(distinct)) for r in requests])
    of_request = of_request.to(model.device)
    prompts = list(distinct)
    width = max(map(len, prompts))
    padding = torch.tensor([width - len(prompt) for prompt in prompts])
    ids = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    padding = padding.to(model.device)
    positions = (torch.arange(width, device=model.device) - padding[:, None]).clamp(min=0)
    mask = visible = None
    if bool(padding.any()):
        columns = torch.arange(width + cap, device=model.device)
        visible = columns >= padding[:, None]
        causal = columns[:width] <= columns[:width, None]
        # A padded query sees itself, so that no softmax runs over nothing (NaN); no real query ever sees it.
        mask = ((causal & visible[:, None, :width]) | torch.eye(width, dtype=torch.bool, device=model.device))[:, None]
        visible = visible[of_request]
    cache = model.new_cache()
    logits = model.logits(ids, positions=positions, mask=mask, cache=cache, last_only=True)[:, -1]
    for layer in cache.layers:
        layer.update = _InPlaceUpdate(layer, of_request, width + cap)
    return logits[of_request], cache, (width - padding)[of_request][:, None], visible
