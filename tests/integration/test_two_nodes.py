"""A Ray cluster of two nodes on this machine: one trainer rank on each, and clear errors where it cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from relax.config.compose import compose_run
from relax.config.errors import ConfigError
from relax.config.resolve import resolve
from relax.runtime.cluster import ray_session
from tests.helpers.runs import train

pytestmark = pytest.mark.timeout(300)

SHORT = ("train.num_rollout=2", "train.sft.num_steps=2", "rollout.batch_size=4", "eval=none", "train.stop.reward=null")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def address(cluster: Cluster) -> str:
    return str(cluster.address)


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


def join(address: str, *overrides: str, nodes: int = 2) -> None:
    """Reserve the placement of a config on the cluster, and give it back."""
    config, _ = resolve(compose_run([*SHORT, *on(address, nodes), *overrides]))
    with ray_session(config):
        pass


def test_a_run_that_does_not_fit_is_an_error_with_the_numbers(address: str) -> None:
    numbers = r"4 bundles of 1 CPU \(4 CPU in all\), the cluster has node 0: 1 CPU; node 1: 1 CPU"
    with pytest.raises(ConfigError, match=numbers):
        join(address, "parallelism.tensor=2", "parallelism.data=2")


def test_a_missing_node_is_an_error_in_time(address: str) -> None:
    with pytest.raises(ConfigError, match=r"launcher\.num_nodes=3: 2 Ray nodes are alive after 1 s"):
        join(address, "launcher.start_timeout_seconds=1", nodes=3)


def test_a_node_that_cannot_hold_its_bundle_is_an_error_with_the_numbers(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=0)
    try:
        ranks = ["parallelism.data=3", "rollout.batch_size=6"]
        run = train(tmp_path / "run", *SHORT, *on(str(cluster.address), nodes=3), *ranks, timeout_seconds=60)
    finally:
        cluster.remove_node(node)
    assert run.returncode == 2, run.output[-3000:]
    assert "3 bundles of 1 CPU (3 CPU in all), each on a node of its own" in run.output
    nodes = re.search(r"node 0: (\d) CPU; node 1: (\d) CPU; node 2: (\d) CPU", run.output)
    assert nodes is not None
    assert sorted(nodes.groups()) == ["0", "1", "1"]
