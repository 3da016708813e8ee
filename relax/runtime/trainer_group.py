"""All trainer ranks as one: calls go to every rank, results come back merged, one failure fails the call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from relax.config.schema import RunConfig
from relax.data.batch import FloatArray, TrainBatch
from relax.runtime.actors import TrainerActor
from relax.runtime.logs import LogFiles
from relax.runtime.placement import PlacementPlan
from relax.runtime.ports import free_port_address
from relax.runtime.waiting import gather
from relax.training.worker import Policy, StepResult, merge_scores


class TrainerGroup:
    """The ranks of one trainer. Every call is collective."""

    def __init__(self, config: RunConfig, *, model_dir: Path, plan: PlacementPlan, placement: Any) -> None:
        self._config = config
        self._timeout = config.train.step_timeout_seconds
        world_size = len(plan.trainer_bundles)
        strategies = [
            PlacementGroupSchedulingStrategy(placement_group=placement, placement_group_bundle_index=bundle)
            for bundle in plan.trainer_bundles
        ]
        address = gather(
            [ray.remote(free_port_address).options(scheduling_strategy=strategies[0], num_cpus=0).remote()],
            timeout_seconds=config.launcher.start_timeout_seconds,
            what="a free port on the first trainer's node",
        )[0]
        device = "cuda:0" if plan.gpus_per_actor else "cpu"
        remote = ray.remote(TrainerActor)
        self._actors = [
            remote.options(
                scheduling_strategy=strategy, num_cpus=0, num_gpus=plan.gpus_per_actor, name=f"trainer-{rank}"
            ).remote(
                config,
                model_dir=model_dir,
                rank=rank,
                world_size=world_size,
                init_method=f"tcp://{address}",
                device=device,
            )
            for rank, strategy in enumerate(strategies)
        ]
        # ranks of data-parallel replica 0 are the first tensor-parallel group
        self._publishers = config.parallelism.tensor
        self.peak_memory: dict[str, float] = {}
        """Highest of each memory figure over the ranks after the last step, in bytes."""

    def wait_ready(self) -> dict[str, LogFiles]:
        """Return when every rank has its model loaded, with where its output goes."""
        files = self._all("log_files", timeout_seconds=self._config.launcher.start_timeout_seconds)
        return {f"trainer-{rank}": item for rank, item in enumerate(files)}

    def start_sft(self) -> None:
        """Begin the supervised phase."""
        self._all("start_sft")

    def train_sft_step(self, batch: TrainBatch) -> dict[str, float]:
        """One supervised step; merged metrics."""
        return merge_steps(self._all("train_sft_step", ray.put(batch)))

    def finish_sft(self) -> None:
        """End the supervised phase."""
        self._all("finish_sft")

    def set_total_steps(self, total_steps: int) -> None:
        """Tell every rank the length of the run in optimizer steps."""
        self._all("set_total_steps", total_steps)

    def keep_snapshot(self, name: str) -> None:
        """Keep a copy of the weights of now under `name`."""
        self._all("keep_snapshot", name)

    def score(self, batch: TrainBatch, *, policy: Policy) -> FloatArray:
        """[R] log-probs of the batch's responses under `policy`."""
        return merge_scores(self._all("score", ray.put(batch), policy=policy), batch)

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """One optimizer step on one global batch; metrics of the global batch."""
        results = self._all("train_step", ray.put(batch))
        figures = [result.memory for result in results if result is not None]
        self.peak_memory = {name: max(item[name] for item in figures) for name in figures[0]}
        return merge_steps(results)

    def publish(self) -> list[Any]:
        """References of the weight buckets."""
        refs = [actor.publish.remote(send=rank == 0) for rank, actor in enumerate(self._actors[: self._publishers])]
        return gather(refs, timeout_seconds=self._timeout, what="the trainer to export its weights")[0]

    def save_checkpoint(self, folder: Path) -> None:
        """Every rank writes its file into `folder`."""
        self._all("save_checkpoint", folder)

    def load_checkpoint(self, folder: Path) -> None:
        """Every rank reads its file from `folder`."""
        self._all("load_checkpoint", folder)

    def save_hf(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder."""
        self._all("save_hf", folder)

    def _all(self, method: str, *args: Any, timeout_seconds: float | None = None, **kwargs: Any) -> list[Any]:
        refs = [getattr(actor, method).remote(*args, **kwargs) for actor in self._actors]
        return gather(refs, timeout_seconds=timeout_seconds or self._timeout, what=f"trainer.{method} on all ranks")


def merge_steps(results: Sequence[StepResult | None]) -> dict[str, float]:
    """Metrics add up over data-parallel ranks; learning rate and gradient norm are the same on all."""
    steps = [result for result in results if result is not None]
    merged = {name: sum(step.metrics[name] for step in steps) for name in steps[0].metrics}
    return merged | {
        "grad_norm": steps[0].grad_norm,
        "lr": steps[0].lr,
        "num_micro_batches": float(steps[0].num_micro_batches),
    }
