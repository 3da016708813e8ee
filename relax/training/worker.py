"""One rank of the trainer: model, optimizer and the calls the run loop makes. Plain Python: no Ray in here."""

from __future__ import annotations

import json
import logging
import os
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from relax.algorithms.policy_loss import PolicyTokens, policy_loss, weighted_sum
from relax.algorithms.reductions import reduction_weights
from relax.config.hf_arch import arch_from_hf_config
from relax.config.schema import Reduction, RunConfig
from relax.data.batch import FloatArray, IntArray, TrainBatch
from relax.data.micro_batches import PackedMicroBatch, RankPlan, pack, plan_micro_batches
from relax.data.weights import WeightBucket
from relax.training.cpu_compat import install_cpu_compat

logger = logging.getLogger(__name__)

Policy = Literal["actor", "reference"]
CHECKPOINT_FORMAT = 2
"""Layout of the per-rank checkpoint file."""


@dataclass(frozen=True)
class ScoreResult:
    """Log-probs of one data-parallel rank's samples."""

    rows: list[int]
    """Rows of the batch, in the order of `values`."""
    values: FloatArray
    """Response log-probs of those rows, one after the other."""


@dataclass(frozen=True)
class StepResult:
    """What one rank reports of an optimizer step. Metrics add up over data-parallel ranks; the rest is the same."""

    metrics: dict[str, float]
    grad_norm: float
    lr: float
    num_micro_batches: int
    num_tokens: int
    """Tokens of this rank's share, prompts included."""
    memory: dict[str, float]
    """High-water marks of this rank, in bytes."""


def merge_scores(results: Sequence[ScoreResult | None], batch: TrainBatch) -> FloatArray:
    """[R] log-probs in the batch's order, from the parts of all ranks.

    Raises:
        ValueError: a sample was scored by no rank.
    """
    starts = batch.response_offsets
    merged = np.full(int(starts[-1]), np.nan, np.float32)
    for result in results:
        if result is None:
            continue
        position = 0
        for row in result.rows:
            length = int(batch.response_lengths[row])
            merged[starts[row] : starts[row] + length] = result.values[position : position + length]
            position += length
    if np.isnan(merged).any():
        raise ValueError(f"{int(np.isnan(merged).sum())} response tokens have no log-prob (or NaN) after scoring")
    return merged


class TrainWorker:
    """One trainer rank.

    Life: `__init__ → (start_sft → train_sft_step* → finish_sft)? → (score | train_step | export)* → shutdown`.
    All calls are collective over the ranks: every rank must make them in the same order with the same batch.
    """

    def __init__(
        self, config: RunConfig, *, model_dir: Path, rank: int, world_size: int, init_method: str, device: str
    ) -> None:
        """Join the process group and load the model.

        Args:
            config: resolved run config.
            model_dir: Hugging Face folder of the first weights.
            rank: this rank.
            world_size: ranks in all.
            init_method: `tcp://host:port` on rank 0's machine.
            device: `cpu` or `cuda:<index>`.
        """
        install_cpu_compat()
        from transformers import AutoConfig

        from relax.training import process_group
        from relax.training.bridge import WeightBridge
        from relax.training.forward import PolicyForward
        from relax.training.model import RotaryTable, build_model

        torch.set_num_threads(config.launcher.num_threads)
        self._config, self._model_dir, self._rank = config, model_dir, rank
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        process_group.initialize(
            config.parallelism, rank=rank, world_size=world_size, init_method=init_method, device=self._device
        )
        self._arch = arch_from_hf_config(json.loads((model_dir / "config.json").read_text(encoding="utf-8")))
        self._model = build_model(self._arch, config, self._device)
        self._bridge = WeightBridge(self._model.module, self._arch)
        self._bridge.load(model_dir)
        dtype = next(self._model.parameters()).dtype
        rotary = RotaryTable(AutoConfig.from_pretrained(model_dir), self._arch, dtype, self._device)
        self._forward = PolicyForward(self._model, rotary, self._arch, config.rollout.temperature)
        self._snapshots: dict[str, dict[str, torch.Tensor]] = {}
        self._total_steps: int | None = None
        self._start_policy_phase()

    def set_total_steps(self, total_steps: int) -> None:
        """Tell the length of the run in optimizer steps, on which a decaying schedule depends."""
        self._total_steps = total_steps
        self._start_policy_phase()

    def start_sft(self) -> None:
        """Begin the supervised phase: a constant learning rate of its own."""
        from relax.training.optimizer import build_optimizer, set_constant_rate

        lr = self._config.train.sft.lr
        self._optimizer = build_optimizer(self._model, self._config, lr=lr)
        set_constant_rate(self._optimizer, self._config, lr=lr)

    def finish_sft(self) -> None:
        """End the supervised phase: fresh optimizer state and the run's own schedule."""
        self._start_policy_phase()

    # --- passes -----------------------------------------------------------------------------------------------

    def score(self, batch: TrainBatch, *, policy: Policy) -> ScoreResult | None:
        """Log-probs of the responses under `policy` at the sampling temperature; None on ranks that hold a copy.

        Raises:
            ValueError: the reference is asked for and no snapshot was kept.
        """
        from megatron.core import parallel_state

        from relax.training.forward import score_micro_batches

        budget = self._config.train.log_probs_max_tokens_per_gpu or self._config.train.max_tokens_per_gpu
        plan = self._plan(batch, budget)
        packs = self._pack(batch, plan, np.zeros(int(batch.response_lengths.sum()), np.float32))
        restore = self._swap_in("reference") if policy == "reference" else None
        try:
            values = score_micro_batches(self._forward, packs)
        finally:
            if restore is not None:
                self._load_parameters(restore)
        if parallel_state.get_tensor_model_parallel_rank() != 0:
            return None
        rows = [row for micro_batch in packs for row in micro_batch.rows]
        return ScoreResult(rows=rows, values=torch.cat(values).float().cpu().numpy())

    def train_step(self, batch: TrainBatch) -> StepResult | None:
        """One optimizer step on one global batch; None on ranks that hold a copy of another's share.

        Raises:
            ValueError: advantages or old log-probs are missing (never taken as zero), or the loss or the gradient
                norm is not finite.
        """
        from relax.training.forward import train_micro_batches

        if batch.advantages is None or batch.old_log_probs is None:
            missing = "advantages" if batch.advantages is None else "old_log_probs"
            raise ValueError(f"the batch carries no {missing}: the policy loss needs them")
        algorithm = self._config.algorithm
        weights = reduction_weights(batch.loss_mask, batch.response_lengths, algorithm.loss.reduction)
        if not weights.any() and self._rank == 0:
            logger.warning("no token of the batch's %d samples is valid: loss and gradient are 0", batch.num_samples)
        packs = self._pack(batch, self._plan(batch, self._config.train.max_tokens_per_gpu), weights)

        def loss(micro_batch: PackedMicroBatch, log_probs: torch.Tensor, entropy: torch.Tensor | None) -> Any:
            tokens = PolicyTokens(
                log_probs=log_probs, sample_index=micro_batch.sample_index, entropy=entropy, **micro_batch.token_fields
            )
            return policy_loss(tokens, algorithm)

        self._zero_grad()
        metrics = train_micro_batches(self._forward, packs, loss, entropy_graph=algorithm.loss.entropy_coef != 0)
        return self._optimizer_step(metrics, packs)

    def train_sft_step(self, batch: TrainBatch) -> StepResult | None:
        """One supervised step: mean −log-prob of the response tokens at temperature 1."""
        from relax.training.forward import train_micro_batches

        weights = reduction_weights(batch.loss_mask, batch.response_lengths, Reduction.token_mean)
        packs = self._pack(batch, self._plan(batch, self._config.train.max_tokens_per_gpu), weights)

        def loss(micro_batch: PackedMicroBatch, log_probs: torch.Tensor, entropy: torch.Tensor | None) -> Any:
            value = weighted_sum(-log_probs, micro_batch.token_fields["weights"])
            return value, {"loss": value.detach()}

        self._zero_grad()
        metrics = train_micro_batches(self._forward, packs, loss, temperature=1.0, entropy=False)
        return self._optimizer_step(metrics, packs, schedule=False)

    # --- weights ----------------------------------------------------------------------------------------------

    def keep_snapshot(self, name: str) -> None:
        """Keep a copy of the weights of now, for passes under another policy."""
        self._snapshots[name] = {n: p.detach().clone() for n, p in self._model.module.named_parameters()}

    def export_buckets(self, bucket_bytes: int) -> Iterator[WeightBucket]:
        """The weights under Hugging Face names, in flat buckets (collective over TP)."""
        return self._bridge.export_buckets(bucket_bytes)

    def export_gradients(self) -> dict[str, torch.Tensor]:
        """Gradients of the last step as the optimizer took them (clipped in place), under Hugging Face names."""
        return self._bridge.export_gradients()

    def save_hf(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder (collective, atomic)."""
        self._bridge.save(folder, source=self._model_dir)

    # --- checkpoints ------------------------------------------------------------------------------------------

    def save_checkpoint(self, folder: Path) -> None:
        """Write this rank's file into `folder`: weights, optimizer, schedule, snapshots, random state."""
        state = {
            "format": CHECKPOINT_FORMAT,
            "model": {n: p.detach() for n, p in self._model.module.named_parameters()},
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "snapshots": self._snapshots,
            "rng": self._rng_state(),
        }
        path = folder / f"rank_{self._rank:05d}.pt"
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def load_checkpoint(self, folder: Path) -> None:
        """Read what `save_checkpoint` wrote on the same layout of ranks.

        Learning rates, their schedule and all other settings are the config's, not the checkpoint's: a run that goes
        on for longer decays to its new end.

        Raises:
            ValueError: the file is absent or of another format.
        """
        path = folder / f"rank_{self._rank:05d}.pt"
        if not path.is_file():
            raise ValueError(f"{path} does not exist: the checkpoint was written by fewer ranks")
        from relax.training.optimizer import load_optimizer

        state = torch.load(path, map_location=self._device, weights_only=True)
        if state["format"] != CHECKPOINT_FORMAT:
            raise ValueError(f"{path} has format {state['format']}, this version reads {CHECKPOINT_FORMAT}")
        self._load_parameters(state["model"])
        # afresh: Megatron's schedule adds the loaded steps to those it has taken
        self._start_policy_phase()
        load_optimizer(self._optimizer, state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._snapshots = state["snapshots"]
        torch.set_rng_state(state["rng"]["cpu"].cpu())
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state["rng"]["cuda"].cpu(), self._device)

    def _rng_state(self) -> dict[str, torch.Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._device)
        return state

    # --- housekeeping -----------------------------------------------------------------------------------------

    def _memory(self) -> dict[str, float]:
        """High-water marks in bytes: allocated and reserved on a GPU, resident size on a CPU."""
        if self._device.type == "cuda":
            allocated = float(torch.cuda.max_memory_allocated())
            return {"peak_memory_allocated": allocated, "peak_memory_reserved": float(torch.cuda.max_memory_reserved())}
        return {"peak_memory_allocated": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}

    def shutdown(self) -> None:
        """Leave the process group."""
        from relax.training import process_group

        process_group.shutdown()

    def _start_policy_phase(self) -> None:
        from relax.training.optimizer import build_optimizer, build_schedule

        self._optimizer = build_optimizer(self._model, self._config, lr=self._config.train.lr)
        self._schedule = build_schedule(self._optimizer, self._config, total_steps=self._total_steps)

    def _zero_grad(self) -> None:
        # both: without the second, gradients are silently wrong from the second step on
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()

    def _optimizer_step(
        self, metrics: dict[str, torch.Tensor], packs: Sequence[PackedMicroBatch], *, schedule: bool = True
    ) -> StepResult | None:
        from megatron.core import parallel_state

        values = dict(zip(metrics, torch.stack(list(metrics.values())).tolist()))
        if not np.isfinite(values["loss"]):
            rows = sorted(row for micro_batch in packs for row in micro_batch.rows)
            raise ValueError(f"the loss of this rank's samples (rows {rows[:8]} …) is {values['loss']}")
        lr = float(self._optimizer.param_groups[0]["lr"])
        _, grad_norm, _ = self._optimizer.step()
        norm = float(grad_norm) if grad_norm is not None else float("nan")
        if not np.isfinite(norm):
            raise ValueError(
                f"the gradient norm is {norm} after a finite loss of {values['loss']}: the weights of this step are "
                "lost, go on from the last checkpoint"
            )
        if schedule:
            self._schedule.step(increment=1)
        if parallel_state.get_tensor_model_parallel_rank() != 0:
            return None
        return StepResult(
            metrics=values,
            grad_norm=norm,
            lr=lr,
            num_micro_batches=len(packs),
            num_tokens=sum(micro_batch.num_tokens for micro_batch in packs),
            memory=self._memory(),
        )

    def _plan(self, batch: TrainBatch, max_tokens: int) -> RankPlan:
        from megatron.core import parallel_state

        lengths: IntArray = batch.lengths
        size = parallel_state.get_data_parallel_world_size()
        plans = plan_micro_batches(lengths, dp_size=size, max_tokens=max_tokens)
        return plans[parallel_state.get_data_parallel_rank()]

    def _pack(self, batch: TrainBatch, plan: RankPlan, weights: FloatArray) -> list[PackedMicroBatch]:
        multiple = self._config.parallelism.tensor if self._config.parallelism.sequence_parallel else 1
        return [pack(batch, rows, weights=weights, pad_multiple=multiple, device=self._device) for rows in plan]

    def _swap_in(self, name: str) -> dict[str, torch.Tensor]:
        if name not in self._snapshots:
            raise ValueError(f"no snapshot {name!r} was kept (have: {', '.join(self._snapshots) or 'none'})")
        current = {n: p.detach().clone() for n, p in self._model.module.named_parameters()}
        self._load_parameters(self._snapshots[name])
        return current

    @torch.no_grad()
    def _load_parameters(self, values: dict[str, torch.Tensor]) -> None:
        for name, parameter in self._model.module.named_parameters():
            parameter.copy_(values[name])
