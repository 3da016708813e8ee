"""Generating and scoring groups of samples: for training and for evaluation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relax.config.schema import EvalSetConfig
from relax.data.sample import Sample, SampleStatus
from relax.rewards.calls import RewardError
from relax.rollout.groups import attach_results, build_requests, make_samples
from relax.rollout.protocol import SamplingParams
from relax.runtime.run import EvalSet, Run


def generate_rollout(run: Run, rollout_id: int) -> list[Sample]:
    """The samples of one rollout, group by group, generated and not yet scored."""
    rollout = run.config.rollout
    prompts = run.source.batch(rollout_id, rollout.batch_size)
    group = rollout.n_samples_per_prompt
    samples = make_samples(
        prompts,
        rollout_id=rollout_id,
        num_samples=group,
        first_index=rollout_id * rollout.batch_size * group,
        first_group=rollout_id * rollout.batch_size,
    )
    run.ledger.hand_out("train", (sample.index for sample in samples))
    sampling = SamplingParams(
        max_response_len=rollout.max_response_len,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
    )
    results = run.engines.generate(build_requests(samples, seed=run.config.seed, sampling=sampling))
    attach_results(samples, results, run.tokenizer)
    return samples


def generate_evaluation(run: Run, item: EvalSet, config: EvalSetConfig) -> list[Sample]:
    """The samples of one evaluation set. The same draws at every evaluation, so that curves compare policies."""
    num_prompts = min(len(item.source), config.max_prompts or len(item.source))
    samples = make_samples(
        item.source.batch(0, num_prompts),
        rollout_id=-1,
        num_samples=config.n_samples_per_prompt,
        first_index=0,
        first_group=0,
    )
    sampling = SamplingParams(
        max_response_len=config.max_response_len or run.config.rollout.max_response_len,
        temperature=config.temperature,
        top_p=config.top_p,
    )
    kind = f"eval/{item.name}"
    run.ledger.hand_out(kind, (sample.index for sample in samples))
    results = run.engines.generate(build_requests(samples, seed=run.config.seed + 1, sampling=sampling))
    attach_results(samples, results, run.tokenizer)
    item.scorer.score(samples)
    run.ledger.close(kind, (sample.index for sample in samples), "evaluated")
    return samples


def score_rollout(run: Run, samples: list[Sample]) -> dict[str, float]:
    """Fill the samples' rewards; what the scorer reports as metrics.

    Raises:
        RewardError: every response that was graded took too long: zeros would be trained on as if they were rewards.
    """
    report = run.scorer.score(samples)
    graded = report.num_scored - report.num_unfinished
    if report.num_timeouts:
        text = f"{report.num_timeouts} of {graded} graded responses took longer than reward.timeout_seconds"
        if report.num_timeouts == graded:
            raise RewardError(f"{text}={run.config.reward.timeout_seconds:g}: the reward hangs, or needs more time")
        run.tracker.display.say(f"warning: {text} and score 0 on the answer")
    return {"rollout/reward_timeouts": float(report.num_timeouts)}


def group_rewards(samples: list[Sample], group_size: int) -> npt.NDArray[np.float64]:
    """[G, n] rewards of whole groups.

    Raises:
        ValueError: a sample was not scored.
    """
    unscored = [sample.index for sample in samples if sample.reward is None]
    if unscored:
        statuses = sorted({sample.status.value for sample in samples if sample.reward is None})
        raise ValueError(f"samples {unscored[:5]} have no reward (status {', '.join(statuses)})")
    return np.array([sample.reward for sample in samples], np.float64).reshape(-1, group_size)


def rollout_metrics(samples: list[Sample], *, zero_std_fraction: float) -> dict[str, float]:
    """Metrics of generated and scored samples (`rollout/…`)."""
    lengths = np.array([len(sample.response_token_ids) for sample in samples])
    metrics = {
        "rollout/reward": float(np.mean([sample.reward for sample in samples])),
        "rollout/response_length": float(lengths.mean()),
        "rollout/truncated_ratio": float(np.mean([s.status is SampleStatus.truncated for s in samples])),
        "rollout/zero_std_fraction": zero_std_fraction,
    }
    for name in sorted({name for sample in samples for name in sample.reward_parts}):
        metrics[f"rollout/reward/{name}"] = float(np.mean([sample.reward_parts.get(name, 0.0) for sample in samples]))
    return metrics


def sample_row(sample: Sample) -> dict[str, object]:
    """One line of `rollouts/…/<step>.jsonl`."""
    return {
        "index": sample.index,
        "group_index": sample.group_index,
        "rollout_id": sample.rollout_id,
        "prompt": sample.prompt,
        "response": sample.response,
        "label": sample.label,
        "reward": sample.reward,
        "reward_parts": sample.reward_parts,
        "status": sample.status.value,
        "num_prompt_tokens": len(sample.prompt_token_ids),
        "num_response_tokens": len(sample.response_token_ids),
        "weight_version": min(sample.weight_versions),
        "mean_log_prob": sum(sample.rollout_log_probs) / len(sample.rollout_log_probs),
    }
