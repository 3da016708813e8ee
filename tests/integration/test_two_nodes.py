"""A Ray cluster of two nodes on this machine: one trainer rank on each, and clear errors where it cannot be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.helpers.runs import train

pytestmark = pytest.mark.timeout(300)

SHORT = ("train.num_rollout=2", "train.sft.num_steps=2", "rollout.batch_size=4", "eval=none", "train.stop.reward=null")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes of one CPU each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


def on(address: str, nodes: int = 2) -> list[str]:
    return ["launcher=ray", f"launcher.address={address}", f"launcher.num_nodes={nodes}"]


def test_each_node_holds_one_trainer_rank_and_its_logs_come_back(address: str, tmp_path: Path) -> None:
    run = train(tmp_path / "run", *SHORT, *on(address), "parallelism=dp2")
    assert run.returncode == 0, run.output[-3000:]
    assert len(run.rewards) == 2
    logs = {path.parent.name: [] for path in run.root.glob("logs/node-*/*")}  # type: ignore[var-annotated]
    for path in run.root.glob("logs/node-*/trainer-*.out"):
        logs[path.parent.name].append(path.name)
    assert sorted(logs.values()) == [["trainer-0.out"], ["trainer-1.out"]]
    assert len(list(run.root.glob("logs/node-*/engine-0.out"))) == 1
    assert json.loads((run.root / "ledger.json").read_text())["open"] == 0


def test_a_run_that_does_not_fit_is_an_error_with_the_numbers(address: str, tmp_path: Path) -> None:
    start = time.monotonic()
    run = train(tmp_path / "run", *SHORT, *on(address), "parallelism.tensor=2", "parallelism.data=2")
    assert run.returncode == 2, run.output[-3000:]
    assert "4 bundles of 1 CPU (4 CPU in all), the cluster has node 0: 1 CPU; node 1: 1 CPU" in run.output
    assert time.monotonic() - start < 60


def test_a_missing_node_and_a_dead_address_are_errors_in_time(address: str, tmp_path: Path) -> None:
    missing = train(tmp_path / "a", *SHORT, *on(address, nodes=3), "launcher.start_timeout_seconds=3")
    assert missing.returncode == 2
    assert "launcher.num_nodes=3: 2 Ray nodes are alive after 3 s" in missing.output
    dead = train(tmp_path / "b", *SHORT, *on("127.0.0.1:9"), timeout_seconds=60)
    assert dead.returncode == 2
    assert "launcher.address=127.0.0.1:9: no Ray cluster answers there" in dead.output
