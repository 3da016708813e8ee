"""Which actor goes where: bundles of a placement group, checked against the cluster before anything waits for them.

Ray lets a request that no node can hold wait for ever; here it is an error with the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relax.config.errors import ConfigError
from relax.config.schema import RunConfig

Bundle = dict[str, float]


@dataclass(frozen=True)
class PlacementPlan:
    """Bundles, and the bundle of every actor."""

    bundles: list[Bundle]
    trainer_bundles: list[int]
    """Bundle of each trainer rank."""
    engine_bundles: list[int]
    """Bundle of each engine."""
    gpus_per_actor: float
    """Share of a GPU each actor asks for; two share one in colocate mode."""


def plan_placement(config: RunConfig) -> PlacementPlan:
    """Colocate: a bundle a trainer rank; engines share the ranks' bundles in turn (and open more when they outnumber
    them on CPUs)."""
    p = config.parallelism
    ranks = p.tensor * p.pipeline * p.context * (p.data or 1)
    engines = config.rollout.num_engines or 1
    on_gpu = config.launcher.num_gpus > 0
    slots = ranks if on_gpu else max(ranks, engines)
    bundle = {"CPU": 2.0, "GPU": 1.0} if on_gpu else {"CPU": 1.0}
    return PlacementPlan(
        bundles=[dict(bundle) for _ in range(slots)],
        trainer_bundles=list(range(ranks)),
        engine_bundles=[index % slots for index in range(engines)],
        gpus_per_actor=0.5 if on_gpu else 0.0,
    )


def strategy(plan: PlacementPlan, *, num_nodes: int) -> str:
    """Ray's placement strategy: together on one node; one bundle a node where they are as many; else spread."""
    if num_nodes == 1:
        return "PACK"
    return "STRICT_SPREAD" if len(plan.bundles) <= num_nodes else "SPREAD"


def by_node(plan: PlacementPlan, nodes: Sequence[str]) -> PlacementPlan:
    """The plan with neighbouring ranks on the same node: a tensor-parallel group is a run of consecutive ranks, and Ray
    deals spread bundles out in turn, which would send its traffic over the network.

    Args:
        plan: the plan that the bundles were reserved for.
        nodes: node of each bundle.
    """
    order = sorted(range(len(nodes)), key=lambda bundle: (nodes.index(nodes[bundle]), bundle))
    return replace(
        plan,
        trainer_bundles=[order[bundle] for bundle in plan.trainer_bundles],
        engine_bundles=[order[bundle] for bundle in plan.engine_bundles],
    )


def check_feasible(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]], *, one_each: bool = False) -> None:
    """Raise ConfigError with the numbers when the nodes cannot hold the bundles (first fit).

    Args:
        bundles: bundles of equal size.
        nodes: resources of each node.
        one_each: every bundle needs a node of its own.
    """
    free = [dict(node) for node in nodes]
    for bundle in bundles:
        home = next((node for node in free if all(node.get(k, 0) >= need for k, need in bundle.items())), None)
        if home is None:
            have = "; ".join(f"node {i}: {_amounts(node)}" for i, node in enumerate(nodes))
            total = {k: sum(b.get(k, 0) for b in bundles) for k in bundle}
            raise ConfigError(
                f"the run asks for {len(bundles)} bundles of {_amounts(bundle)} ({_amounts(total)} in all)"
                f"{', each on a node of its own' if one_each else ''}, "
                f"the cluster has {have or 'no nodes'}: lower parallelism.* or rollout.num_engines, or add nodes"
            )
        if one_each:
            free.remove(home)
            continue
        for key, need in bundle.items():
            home[key] -= need


def _amounts(resources: Mapping[str, float]) -> str:
    """CPUs always, GPUs where there are any."""
    return ", ".join(f"{resources.get(key, 0):g} {key}" for key in ("CPU", "GPU") if key == "CPU" or resources.get(key))
