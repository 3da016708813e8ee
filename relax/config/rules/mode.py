"""Rules on run modes: who has which devices, how stale a sample may be."""

from __future__ import annotations

from collections.abc import Iterator

from relax.config.rules.base import Finding, rule
from relax.config.rules.helpers import at_least, world_size
from relax.config.schema import ImportanceKind, ModeKind, OldPolicy, RunConfig, TeacherKind


@rule("mode.staleness", "mode", "algorithm.importance.kind", "algorithm.old_policy")
def staleness(config: RunConfig) -> Iterator[Finding]:
    """Colocate is never stale; staleness elsewhere needs an off-policy correction."""
    bound, kind = config.mode.max_staleness, config.mode.kind
    yield from at_least("mode.max_staleness", bound, 0, "it counts published versions")
    if bound > 0 and kind is ModeKind.colocate:
        yield Finding(
            "mode.max_staleness",
            bound,
            "0 with mode=colocate",
            "trainer and engines take turns: no sample is older than the weights",
            "mode.max_staleness=0",
        )
    algorithm = config.algorithm
    corrected = algorithm.importance.kind is not ImportanceKind.none or algorithm.old_policy is not OldPolicy.trainer
    if bound > 0 and kind is not ModeKind.colocate and not corrected:
        yield Finding(
            "algorithm.importance.kind",
            "none",
            "a correction (or old_policy=rollout|kept) with max_staleness above 0",
            "stale samples were drawn from an older policy than the one they are scored with",
            "algorithm.importance.kind=tis (or mode.max_staleness=0)",
        )


@rule("mode.devices", "mode", "launcher", "rollout.num_gpus", "teacher.num_gpus", "parallelism")
def devices(config: RunConfig) -> Iterator[Finding]:
    """The GPUs of trainer, engines and teacher fit the cluster."""
    total = config.launcher.num_gpus * config.launcher.num_nodes
    rollout, teacher = config.rollout.num_gpus or 0, config.teacher.num_gpus
    yield from at_least("rollout.num_gpus", config.rollout.num_gpus, 0, "it counts GPUs")
    yield from at_least("rollout.num_gpus_per_engine", config.rollout.num_gpus_per_engine, 1, "it counts GPUs")
    yield from at_least("teacher.num_gpus", teacher, 0, "it counts GPUs")
    if total <= 0:
        if rollout > 0 or teacher > 0:
            path = "rollout.num_gpus" if rollout > 0 else "teacher.num_gpus"
            yield Finding(path, max(rollout, teacher), "0 without GPUs", "launcher.num_gpus is 0", f"{path}=0")
        return
    per_engine = config.rollout.num_gpus_per_engine
    if per_engine > 1 and rollout > 0 and rollout % per_engine:
        yield Finding(
            "rollout.num_gpus_per_engine",
            per_engine,
            f"a divisor of rollout.num_gpus={rollout}",
            "engines have equal shares",
            "rollout.num_gpus_per_engine=1",
        )
    colocate = config.mode.kind is ModeKind.colocate
    needed = rollout + teacher if colocate else rollout + teacher + world_size(config)
    if needed > total:
        who = "engines and teacher" if colocate else "trainer, engines and teacher"
        yield Finding(
            "rollout.num_gpus",
            rollout,
            f"{who} within {total} GPUs (they ask for {needed})",
            "each of them has GPUs of its own" if not colocate else "engines and teacher run at the same time",
            "rollout.num_gpus=null rollout.num_engines=null parallelism.data=null",
        )
    if not colocate and needed <= total and rollout == 0:
        yield Finding(
            "rollout.num_gpus",
            0,
            f"at least {per_engine} with mode={config.mode.kind.value}",
            "generation goes on while the trainer trains",
            f"rollout.num_gpus={per_engine} parallelism.data=null",
        )
    if teacher > 0 and config.teacher.kind is not TeacherKind.sglang:
        yield Finding(
            "teacher.num_gpus",
            teacher,
            f"0 with teacher={config.teacher.kind.value}",
            "only a served teacher has GPUs of its own",
            "teacher.num_gpus=0",
        )


@rule("mode.offload", "mode.offload", "mode.kind", "launcher.num_gpus")
def offload(config: RunConfig) -> Iterator[Finding]:
    """Handing GPU memory over makes sense only where devices are shared."""
    shared = config.mode.kind is ModeKind.colocate and config.launcher.num_gpus > 0
    if config.mode.offload and not shared:
        yield Finding(
            "mode.offload",
            "true",
            "false without shared GPUs",
            "there is nobody to leave the memory to",
            "mode.offload=false",
        )
