"""All rollout engines as one: requests are dealt over them, publications reach every one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from relax.config.schema import RunConfig
from relax.rollout.protocol import GenerateRequest, GenerateResult
from relax.runtime.actors import EngineActor
from relax.runtime.logs import LogFiles
from relax.runtime.placement import PlacementPlan
from relax.runtime.waiting import gather


class EngineGroup:
    """The engines of one run."""

    def __init__(self, config: RunConfig, *, model_dir: Path, plan: PlacementPlan, placement: Any) -> None:
        self._config = config
        remote = ray.remote(EngineActor)
        self._actors = [
            remote.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=placement, placement_group_bundle_index=bundle
                ),
                num_cpus=0,
                num_gpus=plan.gpus_per_actor,
                name=f"engine-{index}",
            ).remote(config, model_dir=model_dir, device="cuda:0" if plan.gpus_per_actor else "cpu")
            for index, bundle in enumerate(plan.engine_bundles)
        ]

    def wait_ready(self) -> dict[str, LogFiles]:
        """Return when every engine answers, with where its output goes."""
        refs = [actor.log_files.remote() for actor in self._actors]
        files = gather(
            refs,
            timeout_seconds=self._config.rollout.engine_start_timeout_seconds,
            what="the rollout engines to start (rollout.engine_start_timeout_seconds)",
        )
        return {f"engine-{index}": item for index, item in enumerate(files)}

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """One response for each request, in order. Seeds make the draw independent of the dealing."""
        shares = [list(requests[index :: len(self._actors)]) for index in range(len(self._actors))]
        refs = [actor.generate.remote(share) for actor, share in zip(self._actors, shares) if share]
        answers = gather(
            refs,
            timeout_seconds=self._config.rollout.generate_timeout_seconds,
            what=f"{len(requests)} responses (rollout.generate_timeout_seconds)",
        )
        merged: list[GenerateResult] = [answers[0][0]] * len(requests)
        for index, share in enumerate(answers):
            merged[index :: len(self._actors)] = share
        return merged

    def publish(self, buckets: Sequence[Any], *, version: int) -> None:
        """Pause every engine, overwrite its weights and let it go on under `version`."""
        gather(
            [actor.publish.remote(*buckets, version=version) for actor in self._actors],
            timeout_seconds=self._config.rollout.http_timeout_seconds,
            what=f"all engines to take over weight version {version} (rollout.http_timeout_seconds)",
        )
