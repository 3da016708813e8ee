"""The Ray session of a run: started or joined quietly, checked for resources, and taken down with the run."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from relax.config.errors import ConfigError
from relax.config.schema import LauncherConfig, LauncherKind, RunConfig
from relax.runtime.placement import PlacementPlan, by_node, check_feasible, plan_placement, strategy

CONNECT_TIMEOUT_SECONDS = 5.0
"""Longest wait for the port of a Ray head to accept a connection."""

HEALTH_TIMEOUT_SECONDS = 15.0
"""Longest wait for a Ray head to say that it is one. `ray.init` waits for minutes on a port that is something else."""

NODE_POLL_SECONDS = 0.5
"""Time between two looks at the cluster's nodes."""

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


def _reachable_address(address: str | None) -> str:
    """`address`, once a Ray head that takes our token has answered there; `auto` finds the cluster of this machine.

    Raises:
        ConfigError: none did, within the sum of the two time-outs above.
    """
    wanted = address if address not in (None, "auto") else (os.environ.get("RAY_ADDRESS") or "auto")
    problem = (_connection_problem(wanted) if wanted != "auto" else None) or _health_problem(wanted)
    if problem is None:
        return wanted
    named = f"launcher.address={address or 'auto'}"
    if wanted not in (address, "auto"):
        named += f" (RAY_ADDRESS={wanted})"
    raise ConfigError(
        f"{named}: no Ray cluster answers there ({problem}): give host:port of a Ray head, start one with "
        "`ray start --head`, or run with launcher=local"
    )


def _connection_problem(address: str) -> str | None:
    """Why nothing accepts a connection at host:port, None when something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(error)
    return None


def _health_problem(address: str) -> str | None:
    """Why the head at `address` is not usable (its last words), None when it is."""
    command = [str(Path(sys.executable).with_name("ray")), "health-check", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HEALTH_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {HEALTH_TIMEOUT_SECONDS:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or f"{command[0]} health-check ended with {done.returncode}").splitlines()[-1]


def _wait_for_nodes(launcher: LauncherConfig) -> list[dict[str, float]]:
    """Resources of the nodes, once as many as the config names are alive.

    Raises:
        ConfigError: too few joined in time.
    """
    if launcher.kind is LauncherKind.local and launcher.num_nodes > 1:
        raise ConfigError(
            f"launcher.num_nodes={launcher.num_nodes}: launcher=local has this machine alone; use launcher=ray"
        )
    deadline = time.monotonic() + launcher.start_timeout_seconds
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if len(nodes) >= launcher.num_nodes:
            return nodes
        if time.monotonic() > deadline:
            raise ConfigError(
                f"launcher.num_nodes={launcher.num_nodes}: {len(nodes)} Ray nodes are alive after "
                f"{launcher.start_timeout_seconds:g} s (launcher.start_timeout_seconds)"
            )
        time.sleep(NODE_POLL_SECONDS)


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
        options["address"] = _reachable_address(launcher.address)
    ray.init(**options)
    try:
        how = strategy(plan, num_nodes=launcher.num_nodes)
        nodes = _wait_for_nodes(launcher)
        check_feasible(plan.bundles, nodes, one_each=how == "STRICT_SPREAD")
        group = placement_group(plan.bundles, strategy=how)
        if not group.wait(timeout_seconds=launcher.start_timeout_seconds):
            raise TimeoutError(
                f"waited {launcher.start_timeout_seconds:g} s for {len(plan.bundles)} bundles of {plan.bundles[0]}: "
                "the cluster is large enough but busy (launcher.start_timeout_seconds)"
            )
        homes = placement_group_table(group)["bundles_to_node_id"]
        yield by_node(plan, [homes[bundle] for bundle in range(len(plan.bundles))]), group
        remove_placement_group(group)
    finally:
        ray.shutdown()
