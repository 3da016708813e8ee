"""What the config can say and `relax.train` cannot run yet. Selecting it is an error, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterator

from relax.config.schema import EngineKind, LauncherKind, ModeKind, OldPolicy, OpdConfig, RunConfig, TeacherKind


def unavailable(config: RunConfig) -> Iterator[str]:
    """One line for each selected part that has not landed, naming the option and what to use instead."""
    perf = config.perf
    for name in ("skip_zero_adv", "pack_zero_adv", "reuse_log_probs"):
        if vars(perf)[name]:
            yield f"perf.{name}=true is not available yet: leave out +perf={name}"
    if perf.publish_interval != 1:
        yield f"perf.publish_interval={perf.publish_interval} is not available yet: perf.publish_interval=1"
    if config.mode.kind is not ModeKind.colocate:
        yield f"mode.kind={config.mode.kind.value} is not available yet: mode=colocate"
    if config.rollout.engine is not EngineKind.embedded:
        yield f"rollout.engine={config.rollout.engine.value} is not available yet: rollout=embedded"
    if config.teacher.kind is not TeacherKind.none:
        yield f"teacher.kind={config.teacher.kind.value} is not available yet: teacher=none"
    if config.algorithm.name != "grpo" or isinstance(config.algorithm, OpdConfig):
        yield f"algorithm={config.algorithm.name} is not available yet: algorithm=grpo"
    if config.algorithm.old_policy is OldPolicy.kept:
        yield "algorithm.old_policy=kept is not available yet: algorithm.old_policy=trainer"
    if config.rollout.over_sampling_batch_size is not None:
        yield "rollout.over_sampling_batch_size is not available yet: rollout.over_sampling_batch_size=null"
    for name in ("pipeline", "context", "expert"):
        if vars(config.parallelism)[name] > 1:
            yield f"parallelism.{name}={vars(config.parallelism)[name]} is not available yet: parallelism.{name}=1"
    if config.parallelism.distributed_optimizer and config.save.interval is not None:
        yield "save.interval with parallelism.distributed_optimizer=true is not available yet: save.interval=null"
    if config.launcher.kind not in (LauncherKind.local, LauncherKind.ray):
        yield (
            f"launcher.kind={config.launcher.kind.value} submits a job: use `python -m relax.launch` with the same "
            "overrides (--render shows what it would submit)"
        )
    if config.debug.dump is not None:
        yield f"debug.dump={config.debug.dump} is not available yet: debug.dump=null"
