"""What a step does with batches that are empty, incomplete or broken, and the supervised phase."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax.config.schema import RunConfig
from relax.data.batch import TrainBatch
from tests.helpers import training
from tests.helpers.workers import Rank, run_ranks

TERMS = (
    "algorithm.kl.loss_coef=0.1",
    "algorithm.loss.entropy_coef=0.01",
    "algorithm.importance.kind=tis",
    "train.max_tokens_per_gpu=50",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training.make_model(training.make_config(), tmp_path_factory.mktemp("model") / "source")


@pytest.fixture(scope="module")
def batch(source: Path) -> TrainBatch:
    made = training.make_batch()
    with torch.no_grad():
        current = torch.cat(training.reference_log_probs(training.hf_model(source), made))
    return training.with_old_log_probs(made, current.numpy())


# --- no valid token -----------------------------------------------------------------------------------------------


def step_without_valid_token(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch) -> Any:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("relax.training")
    logger.addHandler(handler)
    try:
        with training.trainer(rank, config, model_dir) as worker:
            before = list(worker.export_buckets(2**20))
            step = worker.train_step(replace(batch, loss_mask=np.zeros_like(batch.loss_mask)))
            gradients = {name: value.numpy() for name, value in worker.export_gradients().items()}
            after = list(worker.export_buckets(2**20))
            return step, gradients, before, after, worker.train_step(batch), records
    finally:
        logger.removeHandler(handler)


def test_batch_without_valid_token_is_a_step_with_zero_loss_and_zero_gradient(source: Path, batch: TrainBatch) -> None:
    config = training.make_config(*TERMS)
    step, gradients, before, after, next_step, records = run_ranks(step_without_valid_token, 1, config, source, batch)[
        0
    ]
    assert step.metrics["loss"] == 0
    assert step.grad_norm == 0
    assert all(np.isfinite(list(step.metrics.values())))
    assert all((value == 0).all() for value in gradients.values())
    assert all(np.array_equal(a.data, b.data) for a, b in zip(before, after, strict=True))
    assert next_step.grad_norm > 0
    assert [text for text in records if "no token of the batch's 9 samples is valid" in text]


# --- refusals -----------------------------------------------------------------------------------------------------


def messages_of_bad_batches(
    rank: Rank, config: RunConfig, model_dir: Path, batches: list[TrainBatch], good: TrainBatch
) -> Any:
    """(message, weights unchanged) for each batch, and the step of a good batch after them all."""
    outcomes = []
    with training.trainer(rank, config, model_dir) as worker:
        before = list(worker.export_buckets(2**20))
        for bad in batches:
            try:
                worker.train_step(bad)
                message = ""
            except ValueError as error:
                message = str(error)
            after = list(worker.export_buckets(2**20))
            outcomes.append((message, all(np.array_equal(a.data, b.data) for a, b in zip(before, after))))
        return outcomes, worker.train_step(good)


def test_incomplete_and_broken_batches_stop_before_the_weights_move(source: Path, batch: TrainBatch) -> None:
    config = training.make_config(*TERMS)
    spoiled = np.array(batch.advantages)
    spoiled[np.flatnonzero(batch.loss_mask)[0]] = np.nan
    outcomes, good = run_ranks(
        messages_of_bad_batches,
        1,
        config,
        source,
        [
            replace(batch, old_log_probs=None),
            replace(batch, advantages=None),
            replace(batch, ref_log_probs=None),
            replace(batch, rollout_log_probs=None),
            batch.with_fields(advantages=spoiled),
        ],
        batch,
    )[0]
    messages = [message for message, _ in outcomes]
    assert "the batch carries no old_log_probs" in messages[0]
    assert "the batch carries no advantages" in messages[1]
    assert "algorithm.kl.loss_coef needs ref_log_probs" in messages[2]
    assert "algorithm.importance.kind needs rollout_log_probs" in messages[3]
    assert "the loss of this rank's samples (rows [0, 1, 2, 3, 4, 5, 6, 7] …) is nan" in messages[4]
    assert all(unchanged for _, unchanged in outcomes)
    (fresh, _, _), *_ = run_ranks(training.train_steps, 1, config, source, batch, 1)
    # nothing of the refused batches is left in the gradients
    assert good.metrics == fresh[0].metrics
    assert good.grad_norm == fresh[0].grad_norm


def test_gradient_that_overflows_stops_the_run(source: Path, batch: TrainBatch) -> None:
    huge = batch.with_fields(advantages=np.full_like(batch.loss_mask, 1e30))
    ((message, _),), _ = run_ranks(messages_of_bad_batches, 1, training.make_config(), source, [huge], batch)[0]
    assert message.startswith("the gradient norm is ")
    assert "go on from the last checkpoint" in message


def test_masked_tokens_may_hold_anything(source: Path, batch: TrainBatch) -> None:
    config = training.make_config(*TERMS)
    masked = batch.loss_mask == 0
    fields = ("advantages", "old_log_probs", "ref_log_probs", "rollout_log_probs")
    dirty = batch.with_fields(**{name: np.where(masked, np.nan, getattr(batch, name)) for name in fields})
    (clean, gradients, _), *_ = run_ranks(training.train_steps, 1, config, source, batch, 1)
    (step, other, _), *_ = run_ranks(training.train_steps, 1, config, source, dirty, 1)
    assert step[0].metrics == clean[0].metrics
    assert training.largest_difference(training.as_tensors(other), training.as_tensors(gradients)) == 0.0


# --- supervised phase ---------------------------------------------------------------------------------------------


def sft_then_policy(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, folder: Path) -> Any:
    with training.trainer(rank, config, model_dir) as worker:
        worker.start_sft()
        sft = [worker.train_sft_step(batch) for _ in range(3)]
        worker.finish_sft()
        worker.save_hf(folder)
        policy = [worker.train_step(batch) for _ in range(2)]
        after = list(worker.export_buckets(2**20))
    # the same policy steps by a trainer that never saw the supervised phase
    with training.trainer(rank, config, folder) as worker:
        fresh = [worker.train_step(batch) for _ in range(2)]
        return sft, policy, fresh, after, list(worker.export_buckets(2**20))


@pytest.fixture(scope="module")
def sft_outcome(source: Path, batch: TrainBatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = training.make_config(
        "train.lr=1e-4",
        "train.sft.lr=3e-3",
        "train.lr_schedule.warmup_steps=1",
        "rollout.temperature=0.7",
        "train.max_tokens_per_gpu=50",
    )
    return run_ranks(sft_then_policy, 1, config, source, batch, tmp_path_factory.mktemp("sft") / "after")[0]


def test_sft_loss_is_the_mean_negative_log_prob_at_temperature_1(
    sft_outcome: Any, source: Path, batch: TrainBatch
) -> None:
    with torch.no_grad():
        log_probs = torch.cat(training.reference_log_probs(training.hf_model(source), batch))
    expected = -float(log_probs[torch.from_numpy(batch.loss_mask) > 0].mean())
    assert sft_outcome[0][0].metrics == {"loss": pytest.approx(expected, abs=1e-5)}


def test_sft_has_its_own_constant_learning_rate_and_learns(sft_outcome: Any) -> None:
    steps = sft_outcome[0]
    assert [step.lr for step in steps] == [3e-3] * 3
    losses = [step.metrics["loss"] for step in steps]
    assert losses == sorted(losses, reverse=True)


def test_policy_phase_starts_from_a_fresh_optimizer_and_schedule(sft_outcome: Any) -> None:
    _, policy, fresh, after, fresh_after = sft_outcome
    assert [step.lr for step in policy] == [0.0, 1e-4]
    assert [step.metrics for step in policy] == [step.metrics for step in fresh]
    assert all(np.array_equal(a.data, b.data) for a, b in zip(after, fresh_after, strict=True))
