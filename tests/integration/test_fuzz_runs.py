"""What the rules accept in the tiny CPU family runs: one rollout of the real loop and trainer with a fake engine."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax.config.availability import unavailable
from relax.config.compose import compose_run
from relax.config.resolve import resolve
from relax.config.rules import Severity, check
from relax.config.schema import (
    DType,
    ImportanceKind,
    KlKind,
    LossKind,
    LrScheduleKind,
    OldPolicy,
    Recompute,
    Reduction,
    RunConfig,
)
from tests.helpers.fake_run import run_with_fake_engine
from tests.helpers.mutations import put
from tests.helpers.workers import run_ranks

CASES, FULL_CASES = 50, 400
MOST_CHANGES = 5
CHOICES: dict[str, list[Any]] = {
    "seed": [0, 7],
    "model.dtype": list(DType),
    "model.arch.num_layers": [1, 2],
    "model.arch.num_kv_heads": [1, 2, 4],
    "model.arch.tie_embeddings": [True, False],
    "parallelism.tensor": [1, 2],
    "parallelism.data": [1, 2],
    "parallelism.sequence_parallel": [True, False],
    "parallelism.overlap_grad_reduce": [True, False],
    "parallelism.distributed_optimizer": [True, False],
    "algorithm.advantage.center": [True, False],
    "algorithm.advantage.normalize_std": [True, False],
    "algorithm.loss.kind": list(LossKind),
    "algorithm.loss.eps_clip": [0.1, 0.99, 1.0],
    "algorithm.loss.dual_clip": [None, 1.0, 3.0],
    "algorithm.loss.reduction": list(Reduction),
    "algorithm.loss.entropy_coef": [0.0, 0.01],
    "algorithm.old_policy": [OldPolicy.trainer, OldPolicy.rollout],
    "algorithm.kl.kind": list(KlKind),
    "algorithm.kl.loss_coef": [0.0, 0.1],
    "algorithm.kl.penalty_coef": [0.0, 0.1],
    "algorithm.importance.kind": list(ImportanceKind),
    "algorithm.importance.cap": [0.0, 2.0],
    "rollout.batch_size": [1, 2, 3],
    "rollout.n_samples_per_prompt": [1, 2, 4],
    "rollout.max_response_len": [1, 5, 40],
    "rollout.temperature": [0.0, 0.5, 1.0],
    "data.max_prompt_len": [None, 6, 60],
    "data.shuffle": [True, False],
    "reward.require_stop": [True, False],
    "train.global_batch_size": [None, 1, 2, 4],
    "train.num_steps_per_rollout": [None, 1, 2],
    "train.max_tokens_per_gpu": [1, 20, 4096],
    "train.log_probs_max_tokens_per_gpu": [None, 1, 64],
    "train.recompute": list(Recompute),
    "train.lr": [0.0, 1e-3],
    "train.lr_schedule.kind": list(LrScheduleKind),
    "train.lr_schedule.warmup_steps": [0, 1],
    "train.weight_decay": [0.0, 0.1],
    "train.clip_grad": [0.0, 1.0],
    "train.sft.num_steps": [0, 1],
    "train.stop.reward": [None, 0.9],
    "eval.at_start": [True, False],
    "eval.interval": [None, 1],
    "tracking.rollout_samples": [None, 0, 2],
}


def base_config() -> RunConfig:
    return compose_run(
        [
            "train.num_rollout=1",
            "train.sft.num_steps=0",
            "train.sft.batch_size=4",
            "data.size=32",
            "rollout.batch_size=2",
            "rollout.n_samples_per_prompt=2",
            "eval.sets.reverse.data.size=4",
            "tracking.progress=false",
        ]
    )


def accepted(seed: int, count: int) -> list[tuple[dict[str, Any], RunConfig]]:
    """`count` random configs that the rules and availability accept, resolved."""
    rng, base, found = np.random.default_rng(seed), base_config(), []
    paths = sorted(CHOICES)
    while len(found) < count:
        picked = rng.choice(paths, size=int(rng.integers(1, MOST_CHANGES + 1)), replace=False)
        changes = {str(path): CHOICES[path][int(rng.integers(len(CHOICES[path])))] for path in picked}
        config = copy.deepcopy(base)
        for path, value in changes.items():
            put(config, path, value)
        resolved, _ = resolve(config)
        errors = [v for v in check(resolved) if v.severity is Severity.error]
        if not errors and not list(unavailable(resolved)):
            found.append((changes, resolved))
    return found


def run_all(seed: int, count: int, folder: Path) -> None:
    for index, (changes, config) in enumerate(accepted(seed, count)):
        world = config.parallelism.tensor * (config.parallelism.data or 1)
        try:
            rewards = run_ranks(run_with_fake_engine, world, config, folder / str(index), timeout_seconds=60)
        except Exception as error:
            raise AssertionError(f"accepted, but does not run: {changes}") from error
        assert len(rewards[0]) == 1
        assert all(other == rewards[0] for other in rewards)


def test_what_the_rules_accept_runs(tmp_path: Path) -> None:
    run_all(0, CASES, tmp_path)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_what_the_rules_accept_runs_in_hundreds(tmp_path: Path) -> None:
    run_all(1, FULL_CASES, tmp_path)
