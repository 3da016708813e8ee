"""The Ray actors: thin shells that move data between Ray and the trainer or an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray

from relax.config.schema import RunConfig
from relax.data.weights import WeightBucket
from relax.rollout.embedded import EmbeddedEngine
from relax.runtime.logs import Logged
from relax.training.worker import TrainWorker

BUCKET_BYTES = 256 * 2**20
"""Size of a weight bucket on its way to the engines."""


class TrainerActor(Logged, TrainWorker):
    """One trainer rank as an actor."""

    def publish(self, *, send: bool) -> list[Any]:
        """Put the weights into the object store, bucket by bucket (collective over TP).

        Args:
            send: whether this rank's copy is the one that goes out; the others only take part in the gathers.

        Returns:
            References of the buckets, in order.
        """
        return [ray.put(bucket) for bucket in self.export_buckets(BUCKET_BYTES) if send]


class EngineActor(Logged, EmbeddedEngine):
    """One embedded engine as an actor."""

    def __init__(self, config: RunConfig, *, model_dir: Path, device: str) -> None:
        import torch

        torch.set_num_threads(config.launcher.num_threads)
        engine = EmbeddedEngine.from_folder(
            model_dir,
            dtype=config.model.dtype,
            max_batch_sequences=config.rollout.max_batch_sequences,
            device=device,
        )
        vars(self).update(vars(engine))

    def publish(self, *buckets: WeightBucket, version: int) -> None:
        """Take over a whole set of weights: pause, overwrite, go on under `version`."""
        self.pause()
        for bucket in buckets:
            self.update_weights(bucket)
        self.resume(version=version)
