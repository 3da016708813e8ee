"""`EmbeddedEngine`: the `RolloutEngine` around a transformers causal LM in this process, for CPUs and small models."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from relax.config.schema.enums import DType
from relax.data.model_folder import no_progress_bars, torch_dtype
from relax.data.tokenizer import load_tokenizer
from relax.data.weights import WeightBucket
from relax.rollout.checks import check_requests, check_sequences, check_temperature
from relax.rollout.decoding import CausalModel, Decoded, decode_batch, log_softmax_at
from relax.rollout.protocol import EngineHealth, GenerateRequest, GenerateResult
from relax.rollout.weight_loading import load_bucket

SCORE_LOGITS = 2**25
"""Logits that one scoring batch may hold (128 MiB in fp32)."""


class EmbeddedEngine:
    """Life: `serving ⇄ (pause → update_weights* → resume)`. Methods may be called from several threads:
    `generate` and `score` take turns, `pause` waits for them, `health` and `version` never wait.

    A request's draw depends on its seed and position alone; the log-probs it is drawn from carry float noise of the
    batch shape (about 1e-7 in fp32; larger in bf16, where a draw near a boundary can differ between batches).

    Args:
        model: any causal LM with full attention; used in eval mode.
        stop_ids: ids that end a response.
        pad_id: id that fills prompts on the left (never seen by a real token).
        max_batch_sequences: sequences decoded at once.
        version: version of the weights it starts with.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: frozenset[int],
        pad_id: int,
        max_batch_sequences: int = 256,
        version: int = 0,
    ) -> None:
        if max_batch_sequences < 1:
            raise ValueError(f"rollout.max_batch_sequences={max_batch_sequences} must be at least 1")
        self._model = CausalModel(model.eval())
        self._vocab_size = model.get_input_embeddings().weight.shape[0]
        self._max_positions = int(model.config.max_position_embeddings)
        bad = sorted(token for token in stop_ids | {pad_id} if not 0 <= token < self._vocab_size)
        if bad or not stop_ids:
            raise ValueError(
                f"stop ids {sorted(stop_ids)} and pad id {pad_id} must lie in 0 … {self._vocab_size - 1}, "
                "with at least one stop id; set eos_token_id in the model folder's config.json"
            )
        self.stop_ids = stop_ids
        self._pad_id = pad_id
        self._max_batch_sequences = max_batch_sequences
        self._parameters: dict[str, torch.Tensor] = {
            name: parameter.data for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        self._version = version
        self._paused = False
        self._running = 0
        self._changed = threading.Condition()
        self._compute = threading.Lock()
        self._num_requests = self._num_tokens = self._num_updates = 0

    @classmethod
    def from_folder(
        cls, folder: str | Path, *, dtype: DType, max_batch_sequences: int = 256, device: str = "cpu", version: int = 0
    ) -> EmbeddedEngine:
        """The engine of a Hugging Face folder. It stops at every eos id of generation_config.json, config.json and the
        tokenizer.

        Raises:
            DataError: the folder or its tokenizer is missing.
            ValueError: no eos id is known.
        """
        tokenizer = load_tokenizer(folder)
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        stop_ids = set(_as_ids(config.eos_token_id)) | set(_as_ids(tokenizer.eos_token_id))
        if (Path(folder) / "generation_config.json").is_file():
            stop_ids |= set(_as_ids(GenerationConfig.from_pretrained(str(folder)).eos_token_id))
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=torch_dtype(dtype), attn_implementation="sdpa", local_files_only=True
            )
        return cls(
            model.to(device),
            stop_ids=frozenset(stop_ids),
            pad_id=min(stop_ids, default=0),
            max_batch_sequences=max_batch_sequences,
            version=version,
        )

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """One response for each request, in order. Batches are cut by sampling parameters and prompt length.

        Raises:
            ValueError: a request that cannot run (nothing is generated then).
            RuntimeError: the engine is paused.
        """
        check_requests(requests, vocab_size=self._vocab_size, max_positions=self._max_positions)
        results: list[GenerateResult | None] = [None] * len(requests)
        with self._serving("generate"):
            version = self._version
            for indices in self._batches(requests):
                decoded = decode_batch(
                    self._model, [requests[i] for i in indices], stop_ids=self.stop_ids, pad_id=self._pad_id
                )
                for index, response in zip(indices, decoded, strict=True):
                    results[index] = _result(response, version)
                    self._num_tokens += len(response.token_ids)
            self._num_requests += len(requests)
        return [result for result in results if result is not None]

    def score(self, sequences: Sequence[list[int]], *, temperature: float) -> list[list[float]]:
        """Log-probs of tokens 1… of each sequence given their prefix (one fewer than tokens), in fp32.

        Raises:
            ValueError: an empty or too long sequence, an id outside the vocabulary, or a bad temperature.
            RuntimeError: the engine is paused.
        """
        check_sequences(sequences, vocab_size=self._vocab_size, max_positions=self._max_positions)
        check_temperature(temperature)
        scores: list[list[float]] = [[] for _ in sequences]
        with self._serving("score"), torch.inference_mode():
            order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
            while order:
                width = len(sequences[order[-1]])
                rows = max(1, min(self._max_batch_sequences, SCORE_LOGITS // (width * self._vocab_size)))
                batch, order = order[-rows:], order[:-rows]
                self._score_batch([sequences[i] for i in batch], temperature, batch, scores)
        return scores

    def pause(self) -> None:
        """Stop accepting work; returns when none is running. Pausing twice is the same as once."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: self._running == 0)

    def update_weights(self, bucket: WeightBucket) -> None:
        """Overwrite the named parameters; tied ones may come under either name.

        Raises:
            ValueError: an unknown name, or a shape or dtype that does not fit; nothing is written then.
            RuntimeError: the engine is not paused.
        """
        with self._changed:
            if not self._paused or self._running:
                raise RuntimeError("update_weights while the engine serves; call pause() first")
            load_bucket(self._parameters, bucket)
            self._num_updates += 1

    def resume(self, *, version: int) -> None:
        """Accept work again, with the weights stamped `version`.

        Raises:
            ValueError: the version goes back.
        """
        with self._changed:
            if version < self._version:
                raise ValueError(f"resume(version={version}) goes back: the engine holds version {self._version}")
            self._version = version
            self._paused = False

    def version(self) -> int:
        """Version of the weights held."""
        return self._version

    def health(self) -> EngineHealth:
        """Cheap probe: counts since the start, and the calls running or waiting now."""
        return EngineHealth(
            alive=True,
            version=self._version,
            paused=self._paused,
            detail={
                "requests": float(self._num_requests),
                "response_tokens": float(self._num_tokens),
                "weight_buckets": float(self._num_updates),
                "running": float(self._running),
            },
        )

    @contextmanager
    def _serving(self, what: str) -> Iterator[None]:
        with self._changed:
            if self._paused:
                raise RuntimeError(f"{what} while the engine is paused (weights may be moving); call resume() first")
            self._running += 1
        try:
            with self._compute:
                yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _batches(self, requests: Sequence[GenerateRequest]) -> Iterator[list[int]]:
        """Indices of batches: equal sampling, similar lengths, identical prompts side by side (prefilled once)."""

        def same(index: int) -> tuple[float, float, int]:
            sampling = requests[index].sampling
            return (sampling.temperature, sampling.top_p, sampling.top_k)

        order = sorted(
            range(len(requests)),
            key=lambda i: (same(i), len(requests[i].prompt_token_ids), requests[i].prompt_token_ids),
        )
        start = 0
        for end in range(1, len(order) + 1):
            full = end - start == self._max_batch_sequences
            if end == len(order) or full or same(order[end]) != same(order[start]):
                yield order[start:end]
                start = end

    def _score_batch(
        self, sequences: list[list[int]], temperature: float, targets: list[int], scores: list[list[float]]
    ) -> None:
        width = max(map(len, sequences))
        # Padded on the right: under a causal mask no real token sees the padding, so no mask is needed.
        ids = torch.tensor([s + [self._pad_id] * (width - len(s)) for s in sequences], device=self._model.device)
        positions = torch.arange(width, device=self._model.device).expand(len(sequences), width)
        logits = self._model.logits(ids, positions=positions, last_only=False)[:, :-1]
        values = log_softmax_at(logits, temperature).gather(-1, ids[:, 1:, None])[..., 0].cpu()
        for row, target in enumerate(targets):
            scores[target] = values[row, : len(sequences[row]) - 1].tolist()


def _as_ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _result(decoded: Decoded, version: int) -> GenerateResult:
    return GenerateResult(
        token_ids=decoded.token_ids,
        log_probs=decoded.log_probs,
        finish_reason="stop" if decoded.stopped else "length",
        weight_version=version,
    )
