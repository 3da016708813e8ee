"""Tiny models, batches and the functions that worker ranks run in the tests of the trainer."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relax.config.compose import compose_run
from relax.config.resolve import resolve
from relax.config.schema import RunConfig
from relax.data.batch import FloatArray, TrainBatch
from relax.data.model_folder import materialize_model
from relax.data.weights import WeightBucket
from relax.training.worker import ScoreResult, TrainWorker
from tests.helpers.workers import Rank

STILL_LR = "train.lr=1e-30"
"""A learning rate that leaves fp32 weights bit-equal, so that one worker can take many gradients."""

LLAMA3_ROPE = (
    "++model.arch.rope_scaling={rope_type:llama3,factor:8.0,low_freq_factor:1.0,high_freq_factor:4.0,"
    "original_max_position_embeddings:32}"
)
FAMILIES = {
    "qwen3_tied": (),
    "qwen2_untied": ("model.arch.family=qwen2", "model.arch.tie_embeddings=false", "model.arch.rope_theta=10000"),
    "llama_scaled": ("model.arch.family=llama", "model.arch.tie_embeddings=false", LLAMA3_ROPE),
    "qwen3_odd_vocab": ("model.arch.vocab_size=33",),
}
"""Overrides of tiny models that differ in biases, head norms, tying, rotary scaling and vocabulary padding."""


@functools.cache
def _composed(overrides: tuple[str, ...]) -> RunConfig:
    return resolve(compose_run(["train.clip_grad=0", *overrides]))[0]


def make_config(*overrides: str) -> RunConfig:
    """A resolved config of the tiny job, without gradient clipping unless asked for."""
    return copy.deepcopy(_composed(overrides))


def make_model(config: RunConfig, folder: Path) -> Path:
    """A random model folder with wide distributions, norm weights ≠ 1 and biases ≠ 0."""
    from safetensors.torch import load_file, save_file

    source = materialize_model(config.model, seed=0, folder=folder)
    tensors = load_file(source / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        if tensor.ndim == 2:
            # the padding token's embedding is zero, where a norm's gradient is beyond any tolerance
            tensor.mul_(4.0).add_(0.02 * noise)
        elif name.endswith("bias"):
            tensor.copy_(0.2 * noise)
        else:
            tensor.copy_(1 + 0.2 * noise)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return source


def make_batch(*, num_samples: int = 9, vocab_size: int = 32, seed: int = 0, masked: bool = True) -> TrainBatch:
    """Ragged samples with random tokens, advantages and reference log-probs; about a quarter of the tokens masked.

    Old log-probs are left out: they belong near the model's own (`with_old_log_probs`).
    """
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 12, num_samples)
    responses = rng.integers(1, 15, num_samples)
    total = int(responses.sum())
    mask = (rng.random(total) > 0.25).astype(np.float32) if masked else np.ones(total, np.float32)
    advantages = np.repeat(rng.normal(size=num_samples), responses).astype(np.float32)
    return TrainBatch(
        # without the padding token, whose embedding gets no gradient in transformers
        tokens=rng.integers(1, vocab_size, int((prompts + responses).sum())),
        lengths=prompts + responses,
        response_lengths=responses,
        loss_mask=mask,
        sample_ids=np.arange(num_samples),
        advantages=advantages,
    )


def with_old_log_probs(batch: TrainBatch, log_probs: FloatArray, *, spread: float = 0.3, seed: int = 5) -> TrainBatch:
    """The batch with old, rollout and reference log-probs scattered about the current ones."""
    rng = np.random.default_rng(seed)

    def scatter(width: float) -> FloatArray:
        return (log_probs + width * rng.normal(size=len(log_probs))).astype(np.float32)

    return batch.with_fields(
        old_log_probs=scatter(spread), ref_log_probs=scatter(2 * spread), rollout_log_probs=scatter(spread / 2)
    )


def unpack_buckets(buckets: Sequence[WeightBucket]) -> dict[str, torch.Tensor]:
    """Tensors of exported buckets by name."""
    tensors = {}
    for bucket in buckets:
        start, data = 0, torch.from_numpy(bucket.data.copy())
        for name, shape, dtype_name in zip(bucket.names, bucket.shapes, bucket.dtypes):
            dtype = getattr(torch, dtype_name)
            end = start + int(np.prod(shape)) * dtype.itemsize
            tensors[name] = data[start:end].view(dtype).view(shape)
            start = end
        if start != len(data):
            raise ValueError(f"a bucket of {len(data)} bytes holds tensors of {start}")
    return tensors


def hf_model(folder: Path) -> Any:
    """The folder's model in transformers, fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="sdpa").eval()


def sequences(batch: TrainBatch) -> list[torch.Tensor]:
    """Token ids of each sample."""
    return list(torch.from_numpy(batch.tokens).split(batch.lengths.tolist()))


def reference_log_probs(model: Any, batch: TrainBatch, *, temperature: float = 1.0) -> list[torch.Tensor]:
    """Response log-probs of each sample by transformers, one sequence at a time; with graph where it is enabled."""
    result = []
    for tokens, response_length in zip(sequences(batch), batch.response_lengths.tolist()):
        logits = model(tokens[None]).logits[0] / temperature
        log_probs = logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
        result.append(log_probs[len(log_probs) - response_length :])
    return result


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference over tensors of the same names."""
    if ours.keys() != theirs.keys():
        raise ValueError(f"names differ: {sorted(ours.keys() ^ theirs.keys())}")
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


def merged_metrics(steps: Sequence[Any]) -> dict[str, float]:
    """Metrics of the global batch from the results of all ranks."""
    results = [step for step in steps if step is not None]
    return {name: sum(result.metrics[name] for result in results) for name in results[0].metrics}


# --- what runs on the ranks ---------------------------------------------------------------------------------------


@contextmanager
def trainer(rank: Rank, config: RunConfig, model_dir: Path) -> Iterator[TrainWorker]:
    """A `TrainWorker` in this process for a while."""
    worker = TrainWorker(
        config,
        model_dir=model_dir,
        rank=rank.rank,
        world_size=rank.world_size,
        init_method=rank.init_method(),
        device="cpu",
    )
    try:
        yield worker
    finally:
        worker.shutdown()


def forward_and_export(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, folder: Path) -> Any:
    """(this rank's logits of each micro-batch with its rows, scores, exported buckets); also writes `folder`."""
    with trainer(rank, config, model_dir) as worker:
        plan = worker._plan(batch, config.train.max_tokens_per_gpu)
        packs = worker._pack(batch, plan, np.zeros(int(batch.response_lengths.sum()), np.float32))
        with torch.no_grad():
            logits = [(pack.rows, pack.lengths, worker._forward.logits(pack)[0].numpy()) for pack in packs]
        score: ScoreResult | None = worker.score(batch, policy="actor")
        buckets = list(worker.export_buckets(4096))
        worker.save_hf(folder)
    return logits, score, buckets


def train_steps(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, num_steps: int) -> Any:
    """(step results, gradients of the first step by name as arrays, exported buckets after the last)."""
    steps, gradients = [], {}
    with trainer(rank, config, model_dir) as worker:
        for step in range(num_steps):
            steps.append(worker.train_step(batch))
            if step == 0:
                gradients = {name: value.numpy() for name, value in worker.export_gradients().items()}
        buckets = list(worker.export_buckets(2**20))
    return steps, gradients, buckets


def gradients_at_budgets(
    rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, budgets: Sequence[int]
) -> list[Any]:
    """(step result, gradients) for each token budget; the config's learning rate must leave the weights alone."""
    results = []
    with trainer(rank, config, model_dir) as worker:
        for budget in budgets:
            config.train.max_tokens_per_gpu = budget
            step = worker.train_step(batch)
            results.append((step, {name: value.numpy() for name, value in worker.export_gradients().items()}))
    return results


def as_tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Arrays that came from a rank, as tensors."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
