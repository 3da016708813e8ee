"""Several ranks against one process, and the vocabulary-parallel log-probs against the whole softmax."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax.data.batch import TrainBatch
from relax.training.worker import merge_scores
from tests.helpers import training
from tests.helpers.workers import Rank, run_ranks

NUM_STEPS = 3
GRADIENT_TOLERANCE = 1e-6
LOSS_TOLERANCE = 5e-5
TRAIN = ("train.max_tokens_per_gpu=40", "train.lr=1e-3", "train.clip_grad=1.0", "algorithm.loss.entropy_coef=0.01")
LAYOUTS = {
    "tp2": ("parallelism.tensor=2",),
    "dp2": ("parallelism.data=2",),
    "tp2_sequence_parallel": ("parallelism.tensor=2", "parallelism.sequence_parallel=true"),
    "dp2_distributed_optimizer": ("parallelism.data=2", "parallelism.distributed_optimizer=true"),
    "dp2_overlap": ("parallelism.data=2", "parallelism.overlap_grad_reduce=true"),
}
UNMARKED = ("tp2", "dp2")


@dataclass
class Outcome:
    metrics: list[dict[str, float]]
    grad_norms: list[float]
    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


def outcome_of(ranks: list[Any]) -> Outcome:
    """Merge what the ranks of `train_steps` returned, and check that copies agree."""
    per_step = list(zip(*(steps for steps, _, _ in ranks)))
    results = [[item for item in step if item is not None] for step in per_step]
    norms = [{item.grad_norm for item in step} for step in results]
    assert all(len(values) == 1 for values in norms)
    weights = [training.unpack_buckets(buckets) for _, _, buckets in ranks]
    assert all(torch.equal(weights[0][name], other[name]) for other in weights for name in other)
    return Outcome(
        [training.merged_metrics(step) for step in per_step],
        [values.pop() for values in norms],
        training.as_tensors(ranks[0][1]),
        weights[0],
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # TP2 pads the vocabulary of 33
    config = training.make_config(*training.FAMILIES["qwen3_odd_vocab"])
    return training.make_model(config, tmp_path_factory.mktemp("model") / "source")


@pytest.fixture(scope="module")
def batch(source: Path) -> TrainBatch:
    made = training.make_batch(num_samples=11, vocab_size=33)
    with torch.no_grad():
        current = torch.cat(training.reference_log_probs(training.hf_model(source), made))
    return training.with_old_log_probs(made, current.numpy())


@pytest.fixture(scope="module")
def alone(source: Path, batch: TrainBatch) -> Outcome:
    config = training.make_config(*training.FAMILIES["qwen3_odd_vocab"], *TRAIN)
    return outcome_of(run_ranks(training.train_steps, 1, config, source, batch, NUM_STEPS))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in UNMARKED else pytest.mark.full) for name in LAYOUTS],
)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def together(layout: str, source: Path, batch: TrainBatch) -> Outcome:
    config = training.make_config(*training.FAMILIES["qwen3_odd_vocab"], *TRAIN, *LAYOUTS[layout])
    return outcome_of(run_ranks(training.train_steps, 2, config, source, batch, NUM_STEPS))


def test_first_gradients_equal_those_of_one_process(layout: str, together: Outcome, alone: Outcome) -> None:
    assert together.grad_norms[0] == pytest.approx(alone.grad_norms[0], rel=1e-5)
    if layout == "dp2_distributed_optimizer":
        return  # each rank holds the reduced gradient of its own shard only; the steps below tell
    assert training.largest_difference(together.gradients, alone.gradients) < GRADIENT_TOLERANCE


def test_metrics_of_all_steps_equal_those_of_one_process(together: Outcome, alone: Outcome) -> None:
    for ours, theirs in zip(together.metrics, alone.metrics, strict=True):
        assert ours == pytest.approx(theirs, abs=LOSS_TOLERANCE)
    assert together.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)
    # the comparison follows a run that moves
    assert abs(alone.metrics[-1]["loss"] - alone.metrics[0]["loss"]) > 10 * LOSS_TOLERANCE


def test_weights_after_the_steps_equal_those_of_one_process(together: Outcome, alone: Outcome) -> None:
    assert training.largest_difference(together.weights, alone.weights) < LOSS_TOLERANCE


# --- scoring over data-parallel ranks -----------------------------------------------------------------------------


def scores(rank: Rank, config: Any, model_dir: Path, batch: TrainBatch) -> Any:
    with training.trainer(rank, config, model_dir) as worker:
        return worker.score(batch, policy="actor")


def test_scores_of_all_ranks_merge_into_the_batchs_order(source: Path, batch: TrainBatch) -> None:
    config = training.make_config(
        *training.FAMILIES["qwen3_odd_vocab"], "parallelism.data=2", "train.log_probs_max_tokens_per_gpu=30"
    )
    merged = merge_scores(run_ranks(scores, 2, config, source, batch), batch)
    with torch.no_grad():
        expected = torch.cat(training.reference_log_probs(training.hf_model(source), batch))
    torch.testing.assert_close(torch.from_numpy(merged), expected, rtol=0, atol=1e-5)


def test_rows_that_no_rank_scored_are_an_error(batch: TrainBatch) -> None:
    with pytest.raises(ValueError, match="response tokens have no log-prob"):
        merge_scores([None], batch)


# --- log-probs ----------------------------------------------------------------------------------------------------

TEMPERATURE = 0.7


def log_probs_of_shard(rank: Rank, logits: np.ndarray, targets: np.ndarray, upstream: np.ndarray) -> Any:
    """(log-probs, entropy, gradient of this rank's columns) of logits that are padded to two equal shards."""
    from relax.config.schema import ParallelismConfig
    from relax.training import process_group
    from relax.training.cpu_compat import install_cpu_compat

    install_cpu_compat()
    process_group.initialize(
        ParallelismConfig(tensor=rank.world_size),
        rank=rank.rank,
        world_size=rank.world_size,
        init_method=rank.init_method(),
        device=torch.device("cpu"),
    )
    from relax.training.log_probs import vocab_parallel_log_probs

    try:
        vocab_size = logits.shape[1]
        # the padding holds large values: it must not enter any sum
        padded = np.pad(logits, ((0, 0), (0, -vocab_size % rank.world_size)), constant_values=50.0)
        shard = torch.from_numpy(np.split(padded, rank.world_size, axis=1)[rank.rank].copy()).requires_grad_()
        log_probs, entropy = vocab_parallel_log_probs(
            shard, torch.from_numpy(targets), temperature=TEMPERATURE, vocab_size=vocab_size, entropy=True
        )
        assert entropy is not None
        (torch.stack([log_probs, entropy]) * torch.from_numpy(upstream)).sum().backward()
        assert shard.grad is not None
        return log_probs.detach().numpy(), entropy.detach().numpy(), shard.grad.numpy()
    finally:
        process_group.shutdown()


@pytest.mark.parametrize("ranks", [1, 2])
def test_vocabulary_parallel_log_probs_and_entropy_equal_the_whole_softmax(ranks: int) -> None:
    rng = np.random.default_rng(0)
    vocab_size = 33
    logits = (4 * rng.normal(size=(40, vocab_size)) + 20).astype(np.float32)
    targets = np.concatenate([np.arange(vocab_size), rng.integers(0, vocab_size, 7)])
    upstream = rng.normal(size=(2, 40)).astype(np.float32)
    results = run_ranks(log_probs_of_shard, ranks, logits, targets, upstream)

    whole = torch.from_numpy(logits).double().requires_grad_()
    log_policy = (whole / TEMPERATURE).log_softmax(-1)
    expected = torch.stack(
        [log_policy[torch.arange(40), torch.from_numpy(targets)], -(log_policy.exp() * log_policy).sum(-1)]
    )
    (expected * torch.from_numpy(upstream)).sum().backward()
    assert whole.grad is not None
    for log_probs, entropy, _ in results:
        np.testing.assert_allclose(log_probs, expected[0].detach(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(entropy, expected[1].detach(), rtol=0, atol=1e-5)
    gradient = np.concatenate([item for _, _, item in results], axis=1)
    np.testing.assert_allclose(gradient[:, :vocab_size], whole.grad.numpy(), rtol=0, atol=2e-6)
    assert (gradient[:, vocab_size:] == 0).all()
