"""The Ray session of a run: started or joined quietly, checked for resources, and taken down with the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from relax.config.errors import ConfigError
from relax.config.schema import LauncherKind, RunConfig
from relax.runtime.placement import PlacementPlan, check_feasible, plan_placement

_QUIET_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
}


def worker_environment(config: RunConfig) -> dict[str, str]:
    """Environment of every actor: thread counts must be there before torch is imported."""
    return {
        "OMP_NUM_THREADS": str(config.launcher.num_threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
        "TQDM_DISABLE": "1",
    }


@contextmanager
def ray_session(config: RunConfig) -> Iterator[tuple[PlacementPlan, Any]]:
    """The placement plan and its reserved placement group, within a Ray session.

    Raises:
        ConfigError: the cluster cannot be reached, or cannot hold the run.
    """
    os.environ.update(_QUIET_RAY)
    launcher = config.launcher
    plan = plan_placement(config)
    options: dict[str, Any] = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": worker_environment(config)},
    }
    if launcher.kind is LauncherKind.local:
        cpus = max(len(plan.bundles) * int(plan.bundles[0]["CPU"]), os.cpu_count() or 1)
        options |= {"address": "local", "num_cpus": cpus, "num_gpus": launcher.num_gpus}
        options["object_store_memory"] = int(launcher.object_store_gib * 2**30)
    else:
        options["address"] = launcher.address or "auto"
    try:
        ray.init(**options)
    except ConnectionError as error:
        raise ConfigError(
            f"launcher.address={options['address']}: no Ray cluster answers there ({error}); start one with "
            "`ray start --head`, or launcher=local"
        ) from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        check_feasible(plan.bundles, nodes)
        group = placement_group(plan.bundles, strategy="PACK" if launcher.num_nodes == 1 else "SPREAD")
        if not group.wait(timeout_seconds=launcher.start_timeout_seconds):
            raise TimeoutError(
                f"waited {launcher.start_timeout_seconds:g} s for {len(plan.bundles)} bundles of {plan.bundles[0]}: "
                "the cluster is large enough but busy (launcher.start_timeout_seconds)"
            )
        yield plan, group
        remove_placement_group(group)
    finally:
        ray.shutdown()
