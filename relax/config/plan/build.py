"""Build the plan from a resolved config: roles, placement, batch arithmetic, work, memory, arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relax.config.arch import effective_arch
from relax.config.errors import ConfigError
from relax.config.megatron_args import ddp_config_args, optimizer_config_args, transformer_config_args
from relax.config.plan.engine_args import sglang_server_arguments
from relax.config.plan.work import memory_estimate, phase_work
from relax.config.resolve import needs_reference
from relax.config.schema import ArchConfig, EngineKind, ModeKind, RunConfig, TeacherKind


@dataclass(frozen=True)
class Role:
    """Processes of one kind."""

    name: str
    processes: int
    gpus: str
    """Which GPUs, in words."""
    layout: str


@dataclass(frozen=True)
class Plan:
    """Everything `relax.plan` prints."""

    name: str
    mode: str
    roles: list[Role]
    batch: dict[str, Any]
    work: list[dict[str, Any]]
    memory: dict[str, float]
    megatron: dict[str, dict[str, Any]]
    sglang: dict[str, Any]


def build_plan(config: RunConfig) -> Plan:
    """The plan of a resolved config.

    Raises:
        ConfigError: the architecture is not known (no folder and no `model.arch`).
    """
    arch = effective_arch(config.model)
    if arch is None:
        raise ConfigError(
            f"model.source={config.model.source} has no config.json and model.arch is null: the plan needs dimensions"
        )
    return Plan(
        name=config.name,
        mode=config.mode.kind.value,
        roles=roles(config),
        batch=batch_arithmetic(config),
        work=phase_work(arch, config),
        memory=memory_estimate(arch, config),
        megatron=megatron_arguments(arch, config),
        sglang=sglang_server_arguments(config) if config.rollout.engine is EngineKind.sglang else {},
    )


def roles(config: RunConfig) -> list[Role]:
    """Who runs, on how many processes and which GPUs."""
    p, rollout = config.parallelism, config.rollout
    ranks = p.tensor * p.pipeline * p.context * (p.data or 1)
    total = config.launcher.num_gpus * config.launcher.num_nodes
    colocate = config.mode.kind is ModeKind.colocate
    engine_gpus = rollout.num_gpus or 0
    first_engine_gpu = 0 if colocate else ranks
    layout = f"TP{p.tensor} PP{p.pipeline} CP{p.context} DP{p.data or 1}"
    found = [Role("trainer", ranks, _span(0, ranks, total), layout)]
    if rollout.engine is not EngineKind.external:
        engines = rollout.num_engines or 1
        name = f"rollout engine ({rollout.engine.value})"
        span = _span(first_engine_gpu, engine_gpus, total)
        found.append(Role(name, engines, span, f"TP{rollout.num_gpus_per_engine}"))
    if config.teacher.kind is TeacherKind.sglang:
        span = _span(first_engine_gpu + engine_gpus, config.teacher.num_gpus, total)
        found.append(Role("teacher (sglang)", max(1, config.teacher.num_gpus), span, "TP1"))
    if needs_reference(config):
        found.append(Role("reference", 0, "inside the trainer", "a snapshot of the first weights"))
    if config.teacher.kind not in (TeacherKind.none, TeacherKind.sglang):
        found.append(Role("teacher", 0, "inside the trainer", config.teacher.kind.value))
    return found


def _span(first: int, count: int, total: int) -> str:
    if total == 0:
        return "CPU"
    if count <= 0:
        return "none"
    return f"GPU {first}" if count == 1 else f"GPUs {first}–{first + count - 1}"


def batch_arithmetic(config: RunConfig) -> dict[str, Any]:
    """How prompts become optimizer steps."""
    rollout, train = config.rollout, config.train
    samples = rollout.batch_size * rollout.n_samples_per_prompt
    return {
        "prompts a rollout": rollout.batch_size,
        "samples a prompt": rollout.n_samples_per_prompt,
        "samples a rollout": samples,
        "global batch size": train.global_batch_size,
        "optimizer steps a rollout": train.num_steps_per_rollout,
        "samples a data-parallel rank and step": (train.global_batch_size or samples) // (config.parallelism.data or 1),
        "micro-batch token budget": train.max_tokens_per_gpu,
        "rollouts": train.num_rollout if train.num_rollout is not None else "at launch (from train.num_epoch)",
    }


def megatron_arguments(arch: ArchConfig, config: RunConfig) -> dict[str, dict[str, Any]]:
    """Arguments of Megatron's dataclasses, as the trainer passes them."""
    return {
        "TransformerConfig": transformer_config_args(arch, config),
        "DistributedDataParallelConfig": ddp_config_args(config),
        "OptimizerConfig": optimizer_config_args(config, lr=config.train.lr),
    }
