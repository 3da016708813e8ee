"""What every rollout engine can do. The embedded engine and the SGLang engine share this protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from relax.data.weights import WeightBucket


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. `temperature=0` is greedy (log-probs are then those at temperature 1)."""

    max_response_len: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class GenerateRequest:
    """One response to generate. `seed` alone decides the draw: neither batch nor order matters."""

    prompt_token_ids: list[int]
    seed: int
    sampling: SamplingParams


@dataclass(frozen=True)
class GenerateResult:
    """One generated response."""

    token_ids: list[int]
    """Ids, the stop token included."""
    log_probs: list[float]
    """Of each id, at the sampling temperature, under the full distribution (top-p/top-k do not renormalise)."""
    finish_reason: str
    """`stop`, `length` or `abort`."""
    weight_version: int
    """Version of the weights that generated it."""


@dataclass(frozen=True)
class EngineHealth:
    """Answer of a health probe."""

    alive: bool
    version: int
    paused: bool
    detail: dict[str, float] = field(default_factory=dict)


class RolloutEngine(Protocol):
    """One engine. Life: `start → (generate | score)* ⇄ (pause → update_weights* → resume)`.

    `generate` while paused is an error: weights may be moving.
    """

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Generate one response for each request, in order."""
        ...

    def score(self, sequences: Sequence[list[int]], *, temperature: float) -> list[list[float]]:
        """Log-probs of tokens 1… of each sequence given their prefix (one fewer than tokens)."""
        ...

    def pause(self) -> None:
        """Stop accepting generation; returns when none is running."""
        ...

    def update_weights(self, bucket: WeightBucket) -> None:
        """Overwrite the named parameters.

        Raises:
            ValueError: an unknown name, or a shape or dtype that does not fit.
        """
        ...

    def resume(self, *, version: int) -> None:
        """Accept generation again, with the weights stamped `version`."""
        ...

    def version(self) -> int:
        """Version of the weights held."""
        ...

    def health(self) -> EngineHealth:
        """Cheap probe."""
        ...
