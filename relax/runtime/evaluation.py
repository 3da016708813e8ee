"""Evaluation on named sets: mean reward and pass@k."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from relax.data.sample import SampleStatus
from relax.runtime.generation import generate_evaluation, group_rewards, sample_row
from relax.runtime.run import Run
from relax.tracking.files import write_jsonl_atomic


def pass_at_k(passes: npt.NDArray[np.bool_], k: int) -> float:
    """Unbiased estimate of the chance that one of k responses passes (Chen et al. 2021, arXiv:2107.03374, eq. 1).

    Args:
        passes: [prompts, n] which responses pass.
        k: 1 … n.
    """
    n = passes.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= {n} responses a prompt")
    correct = passes.sum(axis=1)
    return float(np.mean([1.0 - math.comb(n - c, k) / math.comb(n, k) for c in correct]))


def evaluate(run: Run, *, version: int) -> None:
    """Run every evaluation set with the engines' weights of now and hold the metrics for step `version`."""
    rows = []
    for item in run.eval_sets:
        config = run.config.eval.sets[item.name]
        samples = generate_evaluation(run, item, config)
        rewards = group_rewards(samples, config.n_samples_per_prompt)
        prefix = f"eval/{item.name}"
        metrics = {
            f"{prefix}/mean": float(rewards.mean()),
            f"{prefix}/response_length": float(np.mean([len(s.response_token_ids) for s in samples])),
            f"{prefix}/truncated_ratio": float(np.mean([s.status is SampleStatus.truncated for s in samples])),
        }
        k = 1
        while k <= config.n_samples_per_prompt:
            metrics[f"{prefix}/pass@{k}"] = pass_at_k(rewards >= config.pass_threshold, k)
            k *= 2
        run.tracker.hold(metrics)
        run.tracker.display.say(f"eval {item.name} at step {version}: mean {rewards.mean():.3f}")
        rows += [{"set": item.name, **sample_row(sample)} for sample in samples]
    write_jsonl_atomic(run.run_dir.rollout_file("eval", version), rows)
