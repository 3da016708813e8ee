"""The trainer's part of one rollout: log-probs, advantages, optimizer steps."""

from __future__ import annotations

import numpy as np

from relax.algorithms.advantages import apply_kl_penalty, equal_reward_groups, group_advantages
from relax.algorithms.policy_loss import finish_metrics
from relax.config.flops import TRAINING_FACTOR, forward_flops
from relax.config.resolve import needs_reference
from relax.config.schema import OldPolicy
from relax.data.batch import TrainBatch, batch_from_samples
from relax.data.sample import Sample
from relax.runtime.generation import group_rewards
from relax.runtime.run import PhaseTimer, Run


def build_batch(run: Run, samples: list[Sample]) -> tuple[TrainBatch, float]:
    """The rollout as arrays with group advantages, and the share of groups whose rewards are all equal."""
    rewards = group_rewards(samples, run.config.rollout.n_samples_per_prompt)
    advantages = group_advantages(rewards, run.config.algorithm.advantage).reshape(-1)
    batch = batch_from_samples(samples)
    per_token = np.repeat(advantages, batch.response_lengths)
    return batch.with_fields(advantages=per_token), float(equal_reward_groups(rewards).mean())


def add_log_probs(run: Run, batch: TrainBatch, phases: PhaseTimer) -> TrainBatch:
    """Old log-probs from their one named source, reference log-probs where a KL term needs them, KL penalty applied."""
    algorithm = run.config.algorithm
    if algorithm.old_policy is OldPolicy.trainer:
        with phases("log_probs_time"):
            batch = batch.with_fields(old_log_probs=run.trainer.score(batch, policy="actor"))
    else:
        batch = batch.with_fields(old_log_probs=batch.rollout_log_probs)
    if needs_reference(run.config):
        with phases("ref_log_probs_time"):
            batch = batch.with_fields(ref_log_probs=run.trainer.score(batch, policy="reference"))
    if algorithm.kl.penalty_coef != 0:
        advantages, old, ref = batch.advantages, batch.old_log_probs, batch.ref_log_probs
        if advantages is None or old is None or ref is None:
            raise ValueError("the KL penalty needs advantages, old and reference log-probs")
        batch = batch.with_fields(advantages=apply_kl_penalty(advantages, old, ref, algorithm.kl))
    return batch


def train_on(run: Run, batch: TrainBatch, phases: PhaseTimer) -> dict[str, float]:
    """The optimizer steps of one rollout; metrics are means over them."""
    size = run.config.train.global_batch_size or batch.num_samples
    steps = []
    with phases("actor_train_time"):
        for start in range(0, batch.num_samples, size):
            rows = range(start, min(start + size, batch.num_samples))
            part = batch if size >= batch.num_samples else batch.select(list(rows))
            steps.append(finish_metrics(run.trainer.train_step(part)))
    return {f"train/{name}": float(np.mean([step[name] for step in steps])) for name in steps[0]}


def perf_metrics(run: Run, batch: TrainBatch, phases: PhaseTimer) -> dict[str, float]:
    """Times, rates and memory of one step (`perf/…`); seconds, tokens a second, TFLOP/s, bytes."""
    seconds = {
        name: phases.seconds.get(name, 0.0)
        for name in (
            "rollout_time",
            "reward_time",
            "log_probs_time",
            "ref_log_probs_time",
            "actor_train_time",
            "update_weights_time",
        )
    }
    step_time = phases.total()
    train_time = sum(seconds[name] for name in ("log_probs_time", "ref_log_probs_time", "actor_train_time"))
    flops = TRAINING_FACTOR * forward_flops(run.arch, batch.lengths.tolist())
    return {
        **{f"perf/{name}": value for name, value in seconds.items()},
        "perf/train_time": train_time,
        "perf/train_wait_time": seconds["rollout_time"] + seconds["reward_time"],
        "perf/step_time": step_time,
        "perf/step_token_per_s": float(batch.lengths.sum()) / step_time,
        "perf/response_token_per_s": float(batch.response_lengths.sum()) / step_time,
        "perf/actor_train_tflops": flops / seconds["actor_train_time"] / 1e12,
        **{f"perf/{name}": value for name, value in run.trainer.peak_memory.items()},
    }


def sample_advantages(batch: TrainBatch) -> list[float]:
    """First-token advantage of every sample, for the rollout files."""
    if batch.advantages is None:
        raise ValueError("the batch carries no advantages")
    return batch.advantages[batch.response_offsets[:-1]].tolist()
