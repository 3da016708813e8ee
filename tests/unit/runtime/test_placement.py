"""Placement: bundles of a config, and the error of an infeasible one."""

from __future__ import annotations

import pytest

from relax.config.compose import compose_run
from relax.config.errors import ConfigError
from relax.config.resolve import resolve
from relax.runtime.placement import by_node, check_feasible, plan_placement


def test_engines_share_the_trainers_bundles() -> None:
    config, _ = resolve(compose_run(["parallelism=tp2", "rollout.num_engines=3"]))
    plan = plan_placement(config)
    assert (len(plan.bundles), plan.trainer_bundles, plan.engine_bundles) == (3, [0, 1], [0, 1, 2])


def test_a_gpu_is_shared_by_a_trainer_rank_and_an_engine() -> None:
    config, _ = resolve(compose_run(["launcher.num_gpus=2", "rollout.num_engines=2"]))
    plan = plan_placement(config)
    assert len(plan.trainer_bundles) == 2
    assert plan.engine_bundles == [0, 1]
    assert plan.gpus_per_actor * 2 == 1.0


def test_an_infeasible_placement_is_an_error_with_the_numbers() -> None:
    check_feasible([{"CPU": 1.0}] * 3, [{"CPU": 2.0}, {"CPU": 1.0}])
    with pytest.raises(ConfigError, match=r"3 bundles of 2 CPU \(6 CPU in all\), the cluster has node 0: 5 CPU"):
        check_feasible([{"CPU": 2.0}] * 3, [{"CPU": 5.0}])
    with pytest.raises(ConfigError, match=r"each on a node of its own, the cluster has node 0: 9 CPU"):
        check_feasible([{"CPU": 1.0}] * 2, [{"CPU": 9.0}], one_each=True)
    check_feasible([{"CPU": 1.0}] * 2, [{"CPU": 1.0}, {"CPU": 1.0}], one_each=True)
    with pytest.raises(ConfigError, match="1 GPU"):
        check_feasible([{"CPU": 1.0, "GPU": 1.0}], [{"CPU": 8.0}])


def test_neighbouring_ranks_share_a_node_however_ray_deals_the_bundles() -> None:
    config, _ = resolve(compose_run(["launcher.num_gpus=2", "launcher.num_nodes=2", "rollout.num_engines=4"]))
    nodes = ["b", "a", "b", "a"]
    plan = by_node(plan_placement(config), nodes)
    assert [nodes[bundle] for bundle in plan.trainer_bundles] == ["b", "b", "a", "a"]
    assert sorted(plan.trainer_bundles) == [0, 1, 2, 3]
    assert plan.engine_bundles == plan.trainer_bundles


def test_a_node_without_cpus_is_shown_as_such() -> None:
    with pytest.raises(ConfigError, match=r"the cluster has node 0: 1 CPU; node 1: 0 CPU"):
        check_feasible([{"CPU": 1.0}] * 2, [{"CPU": 1.0}, {"memory": 1.0}], one_each=True)
