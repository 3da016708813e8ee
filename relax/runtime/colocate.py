"""Colocate mode: trainer and engines take turns. Read this file first; it is the algorithm from top to bottom.

prompts → groups → rewards → advantages → (old and reference log-probs) → optimizer steps → publish → metrics
"""

from __future__ import annotations

from relax.config.cadence import due
from relax.config.resolve import needs_reference
from relax.runtime.checkpoint import save_checkpoint
from relax.runtime.evaluation import evaluate
from relax.runtime.generation import generate_rollout, rollout_metrics, sample_row, score_rollout
from relax.runtime.run import PhaseTimer, Run
from relax.runtime.training_step import add_log_probs, build_batch, perf_metrics, sample_advantages, train_on
from relax.runtime.warm_up import warm_up
from relax.tracking.files import write_jsonl_atomic


def run_colocate(run: Run, *, first_rollout: int) -> None:
    """Train from rollout `first_rollout` until the run's length or its early stop.

    Weight version v is the policy that rollout v starts from: version 0 is the policy after the warm-up.
    """
    if first_rollout == 0:
        warm_up(run)
        if needs_reference(run.config):
            run.trainer.keep_snapshot("reference")
    publish(run, version=first_rollout)
    if first_rollout == 0 and run.config.eval.at_start:
        evaluate(run, version=0)

    run.tracker.display.start("train", total=run.num_rollout, done=first_rollout)
    version = first_rollout
    for rollout_id in range(first_rollout, run.num_rollout):
        train_one_rollout(run, rollout_id)
        version = rollout_id + 1
        last = version == run.num_rollout or is_solved(run)
        if due(rollout_id, run.config.eval.interval) or (last and run.config.eval.at_end):
            evaluate(run, version=version)
        if due(rollout_id, run.config.save.interval):
            save_checkpoint(run, rollout_id)
        if last:
            break
    run.tracker.log_held(version)


def train_one_rollout(run: Run, rollout_id: int) -> None:
    """One pass of the algorithm."""
    phases = PhaseTimer()
    with phases("rollout_time"):
        samples = generate_rollout(run, rollout_id)
    with phases("reward_time"):
        reward_metrics = score_rollout(run, samples)
    batch, zero_std_fraction = build_batch(run, samples)
    batch = add_log_probs(run, batch, phases)
    train_metrics = train_on(run, batch, phases)
    with phases("update_weights_time"):
        publish(run, version=rollout_id + 1)
    run.ledger.close("train", (sample.index for sample in samples), "trained")

    metrics = rollout_metrics(samples, zero_std_fraction=zero_std_fraction)
    metrics |= reward_metrics | train_metrics | perf_metrics(run, batch, phases)
    rows = [{**sample_row(s), "advantage": a} for s, a in zip(samples, sample_advantages(batch))]
    write_jsonl_atomic(run.run_dir.rollout_file("train", rollout_id), rows[: run.config.tracking.rollout_samples])
    run.tracker.log(rollout_id, metrics)
    run.recent_rewards = [*run.recent_rewards, metrics["rollout/reward"]][-run.config.train.stop.window :]
    run.tracker.display.update(
        rollout_id + 1,
        {
            "reward": f"{metrics['rollout/reward']:.3f}",
            "loss": f"{metrics['train/loss']:+.4f}",
            "tok/s": f"{metrics['perf/step_token_per_s']:,.0f}",
        },
    )


def publish(run: Run, *, version: int) -> None:
    """Bring the trainer's weights to every engine, stamped `version`."""
    run.engines.publish(run.trainer.publish(), version=version)
    run.tracker.event(version, "published", version=version)


def is_solved(run: Run) -> bool:
    """Whether the early stop has been reached."""
    stop = run.config.train.stop
    enough = len(run.recent_rewards) == stop.window
    return stop.reward is not None and enough and sum(run.recent_rewards) / stop.window > stop.reward
