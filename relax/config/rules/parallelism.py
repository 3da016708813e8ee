"""Rules on how the trainer is laid out over devices."""

from __future__ import annotations

import math
from collections.abc import Iterator

from relax.config.devices import local_gpu_count
from relax.config.rules.base import Finding, Scope, rule
from relax.config.rules.helpers import arch_or_none, at_least, divisors, world_size
from relax.config.schema import LauncherKind, RunConfig


@rule("parallelism.degrees", "parallelism")
def degrees(config: RunConfig) -> Iterator[Finding]:
    """Every degree is at least 1."""
    for name in ("tensor", "pipeline", "context", "expert", "data"):
        value = vars(config.parallelism)[name]
        yield from at_least(f"parallelism.{name}", value, 1, "a degree of parallelism counts ranks")
    if config.parallelism.timeout_seconds <= 0:
        yield Finding(
            "parallelism.timeout_seconds",
            config.parallelism.timeout_seconds,
            "above 0",
            "a collective must have time to finish",
            "parallelism.timeout_seconds=600",
        )


@rule("parallelism.tensor_divides", "parallelism.tensor", "model.arch")
def tensor_divides(config: RunConfig) -> Iterator[Finding]:
    """The tensor-parallel degree divides what it shards."""
    tensor, arch = config.parallelism.tensor, arch_or_none(config)
    if arch is None or tensor <= 1:
        return
    names = ("num_attention_heads", "num_kv_heads", "ffn_hidden_size")
    sizes = {name: vars(arch)[name] for name in names if vars(arch)[name] >= 1}
    bad = [f"{name}={size}" for name, size in sizes.items() if size % tensor]
    if bad:
        yield Finding(
            "parallelism.tensor",
            tensor,
            f"a divisor of {', '.join(bad)} ({divisors(math.gcd(*sizes.values()))})",
            "each rank holds an equal share",
            "parallelism.tensor=1",
        )


@rule("parallelism.pipeline_divides", "parallelism.pipeline", "model.arch")
def pipeline_divides(config: RunConfig) -> Iterator[Finding]:
    """Pipeline stages hold equal numbers of layers."""
    stages, arch = config.parallelism.pipeline, arch_or_none(config)
    if arch is not None and stages > 1 and arch.num_layers >= 1 and arch.num_layers % stages:
        yield Finding(
            "parallelism.pipeline",
            stages,
            f"a divisor of num_layers={arch.num_layers} ({divisors(arch.num_layers)})",
            "every stage holds the same number of layers",
            "parallelism.pipeline=1",
        )


@rule("parallelism.sequence_parallel", "parallelism.sequence_parallel", "parallelism.tensor")
def sequence_parallel(config: RunConfig) -> Iterator[Finding]:
    """Sequence parallelism shards over the tensor-parallel ranks, so there must be several."""
    if config.parallelism.sequence_parallel and config.parallelism.tensor == 1:
        yield Finding(
            "parallelism.sequence_parallel",
            "true",
            "false with parallelism.tensor=1",
            "it shards over the tensor-parallel ranks",
            "parallelism.sequence_parallel=false",
        )


@rule("parallelism.world_size", "parallelism", "launcher.num_gpus", "launcher.num_nodes")
def world(config: RunConfig) -> Iterator[Finding]:
    """The trainer's ranks fit the GPUs asked for."""
    gpus, ranks = config.launcher.num_gpus * config.launcher.num_nodes, world_size(config)
    if gpus > 0 and ranks > gpus:
        yield Finding(
            "parallelism.data",
            config.parallelism.data,
            f"ranks within {gpus} GPUs (tensor × pipeline × context × data is {ranks})",
            "each trainer rank has a GPU of its own",
            "parallelism.data=null (or a larger launcher.num_gpus)",
        )
    yield from at_least("launcher.num_nodes", config.launcher.num_nodes, 1, "a run needs a machine")
    yield from at_least("launcher.num_gpus", config.launcher.num_gpus, 0, "it counts GPUs a node; 0 runs on CPUs")
    yield from at_least("launcher.num_threads", config.launcher.num_threads, 1, "a process computes on some thread")


@rule("parallelism.gpus_exist", "launcher.num_gpus", "launcher.kind", scope=Scope.devices)
def gpus_exist(config: RunConfig) -> Iterator[Finding]:
    """A local run finds the GPUs it asks for on this machine."""
    wanted, present = config.launcher.num_gpus, local_gpu_count()
    if config.launcher.kind is LauncherKind.local and wanted > present:
        yield Finding(
            "launcher.num_gpus",
            wanted,
            f"at most the {present} GPUs of this machine",
            "launcher=local starts every process here",
            f"launcher.num_gpus={present}",
        )
