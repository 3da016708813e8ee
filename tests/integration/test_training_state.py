"""What a trainer keeps between calls: optimizer state, schedule, masters, snapshots and checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax.config.schema import RunConfig
from relax.data.batch import TrainBatch
from relax.training.worker import StepResult, merge_scores
from tests.helpers import training
from tests.helpers.workers import Rank, RankError, run_ranks

full = pytest.mark.full
TRAIN = ("train.max_tokens_per_gpu=60", "train.lr=1e-3", "train.weight_decay=0.1")
COSINE = (
    "train.lr_schedule.kind=cosine",
    "train.lr_schedule.warmup_steps=2",
    "train.lr_schedule.decay_steps=6",
    "train.lr_schedule.min_lr=1e-4",
)
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training.make_model(training.make_config(), tmp_path_factory.mktemp("model") / "source")


@pytest.fixture(scope="module")
def batch(source: Path) -> TrainBatch:
    made = training.make_batch(num_samples=10)
    with torch.no_grad():
        current = torch.cat(training.reference_log_probs(training.hf_model(source), made))
    return training.with_old_log_probs(made, current.numpy())


def weights_of(worker: Any) -> Weights:
    """Exported weights as fp32 arrays (exact for bf16)."""
    tensors = training.unpack_buckets(list(worker.export_buckets(2**20)))
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def equal(ours: Weights, theirs: Weights) -> bool:
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def metrics_of(steps: list[StepResult | None]) -> list[tuple[dict[str, float], float, float]]:
    return [(step.metrics, step.grad_norm, step.lr) for step in steps if step is not None]


# --- schedule, clipping, dtype ------------------------------------------------------------------------------------


def learning_rates(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, total: int | None) -> list[float]:
    with training.trainer(rank, config, model_dir) as worker:
        if total is not None:
            worker.set_total_steps(total)
        return [step.lr for step in [worker.train_step(batch) for _ in range(8)] if step is not None]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("constant", lambda _: 1.0),
        pytest.param("linear", lambda done: 1 - done, marks=full),
        ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
    ],
)
@pytest.mark.parametrize("named", [True, pytest.param(False, marks=full)], ids=["decay_steps", "end_of_the_run"])
def test_learning_rate_follows_its_formula(kind: str, shape: Any, named: bool, source: Path, batch: TrainBatch) -> None:
    peak, floor, warm_up, end = 1e-3, 1e-4, 2, 6
    config = training.make_config(*TRAIN, *COSINE, f"train.lr_schedule.kind={kind}")
    if not named:
        config.train.lr_schedule.decay_steps = None
    floor = peak if kind == "constant" else floor
    expected = [
        peak * step / warm_up
        if step < warm_up
        else floor + (peak - floor) * shape(min(1.0, (step - warm_up) / (end - warm_up)))
        for step in range(8)
    ]
    (rates,) = run_ranks(learning_rates, 1, config, source, batch, None if named else end)
    assert rates == pytest.approx(expected, rel=1e-9)


def clipped_step(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch) -> Any:
    with training.trainer(rank, config, model_dir) as worker:
        step = worker.train_step(batch)
        return step, {name: value.numpy() for name, value in worker.export_gradients().items()}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=full)])
def test_clipping_bounds_the_norm_and_keeps_the_direction(ranks: int, source: Path, batch: TrainBatch) -> None:
    outcomes = {}
    for bound in (0.0, 1e-3, 1e3):
        config = training.make_config(*TRAIN, f"train.clip_grad={bound}", f"parallelism.tensor={ranks}")
        outcomes[bound] = run_ranks(clipped_step, ranks, config, source, batch)[0]
    free, tight, loose = (training.as_tensors(outcomes[bound][1]) for bound in (0.0, 1e-3, 1e3))
    norm = float(torch.stack([value.norm() for value in free.values()]).norm())
    assert norm > 0.01
    # the norm that is reported is the one before the clip
    assert [outcomes[bound][0].grad_norm for bound in outcomes] == pytest.approx([norm] * 3, rel=1e-5)
    assert training.largest_difference(loose, free) < 1e-7
    scaled = {name: value * (1e-3 / norm) for name, value in free.items()}
    assert training.largest_difference(tight, scaled) < 1e-3 * 1e-4


def bf16_run(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, num_steps: int, folder: Path) -> Any:
    with training.trainer(rank, config, model_dir) as worker:
        before = weights_of(worker)
        steps = [worker.train_step(batch) for _ in range(num_steps)]
        dtypes = {dtype for bucket in worker.export_buckets(2**20) for dtype in bucket.dtypes}
        worker.save_hf(folder)
        return steps, before, weights_of(worker), dtypes


def test_bf16_trains_over_fp32_masters(source: Path, batch: TrainBatch, tmp_path: Path) -> None:
    # one update is far below bf16's resolution of a weight near 1: only masters can add 40 of them up
    config = training.make_config(*TRAIN, "model.dtype=bf16", "train.lr=2e-4", "train.weight_decay=0.0")
    ((steps, before, after, dtypes),) = run_ranks(bf16_run, 1, config, source, batch, 40, tmp_path / "saved")
    assert dtypes == {"bfloat16"}
    norm = "model.norm.weight"
    assert np.abs(after[norm] - before[norm]).max() > 2e-3
    assert np.isfinite([step.grad_norm for step in steps]).all()
    assert steps[-1].metrics["loss"] < steps[0].metrics["loss"] - 0.01
    # the saved config names the dtype of the weights beside it, whatever the source's was
    from transformers import AutoConfig, AutoModelForCausalLM

    assert AutoConfig.from_pretrained(source).dtype == torch.float32
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype="auto")
    assert saved.dtype == torch.bfloat16
    assert equal({name: p.detach().float().numpy() for name, p in saved.named_parameters()}, after)


def test_recomputation_changes_no_gradient(source: Path, batch: TrainBatch) -> None:
    outcomes = [
        run_ranks(clipped_step, 1, training.make_config(*TRAIN, f"train.recompute={kind}"), source, batch)[0]
        for kind in ("none", "full")
    ]
    (plain, gradients), (recomputed, other) = outcomes
    assert recomputed.metrics == plain.metrics
    assert training.largest_difference(training.as_tensors(other), training.as_tensors(gradients)) == 0.0


# --- snapshots ----------------------------------------------------------------------------------------------------


class ForwardError(Exception):
    pass


class FailingForward:
    @property
    def model(self) -> Any:
        raise ForwardError


def reference_scores(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch) -> Any:
    with training.trainer(rank, config, model_dir) as worker:
        try:
            worker.score(batch, policy="reference")
            error = ""
        except ValueError as raised:
            error = str(raised)
        first = worker.score(batch, policy="actor")
        worker.keep_snapshot("reference")
        for _ in range(2):
            worker.train_step(batch)
        before = weights_of(worker)
        reference, actor = worker.score(batch, policy="reference"), worker.score(batch, policy="actor")
        # a pass that fails under the reference must not leave its weights behind
        forward, worker._forward = worker._forward, FailingForward()  # type: ignore[assignment]
        try:
            worker.score(batch, policy="reference")
            failed = False
        except ForwardError:
            failed = True
        worker._forward = forward
        return error, first, reference, actor, failed, equal(before, weights_of(worker))


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=full)])
def test_reference_is_the_kept_policy_and_the_actor_stays(ranks: int, source: Path, batch: TrainBatch) -> None:
    config = training.make_config(*TRAIN, f"parallelism.tensor={ranks}")
    outcomes = run_ranks(reference_scores, ranks, config, source, batch)
    assert all(error == "no snapshot 'reference' was kept (have: none)" for error, *_ in outcomes)
    first, reference, actor = (merge_scores([item[n] for item in outcomes], batch) for n in (1, 2, 3))
    assert np.array_equal(first, reference)
    assert np.abs(actor - reference).max() > 1e-3
    assert all(failed and kept for *_, failed, kept in outcomes)


# --- phases -------------------------------------------------------------------------------------------------------


def weight_decays(rank: Rank, config: RunConfig, model_dir: Path) -> Any:
    with training.trainer(rank, config, model_dir) as worker:
        policy = [group["weight_decay"] for group in worker._optimizer.param_groups]
        worker.start_sft()
        return policy, [group["weight_decay"] for group in worker._optimizer.param_groups]


def test_norms_do_not_decay_in_either_phase(source: Path) -> None:
    ((policy, supervised),) = run_ranks(weight_decays, 1, training.make_config(*TRAIN), source)
    assert sorted(policy) == [0.0, 0.1]
    assert supervised == policy


# --- checkpoints --------------------------------------------------------------------------------------------------


def interrupted_run(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, folder: Path) -> Any:
    """(a straight run of five steps, one that is saved after two and goes on in a new worker), each with scores."""
    with training.trainer(rank, config, model_dir) as worker:
        worker.keep_snapshot("reference")
        for _ in range(2):
            worker.train_step(batch)
        worker.save_checkpoint(folder)
        steps = [worker.train_step(batch) for _ in range(3)]
        straight = metrics_of(steps), weights_of(worker), worker.score(batch, policy="reference")
    with training.trainer(rank, config, model_dir) as worker:
        # traces of a life before the load must not survive it
        worker.train_step(batch)
        worker.load_checkpoint(folder)
        steps = [worker.train_step(batch) for _ in range(3)]
        resumed = metrics_of(steps), weights_of(worker), worker.score(batch, policy="reference")
    return straight, resumed


@pytest.mark.parametrize(
    ("overrides", "ranks"),
    [
        pytest.param((), 1, id="fp32"),
        pytest.param(("model.dtype=bf16",), 1, id="bf16"),
        pytest.param(("parallelism.tensor=2",), 2, id="tp2", marks=full),
        pytest.param(("parallelism.data=2",), 2, id="dp2", marks=full),
    ],
)
def test_loaded_checkpoint_continues_bit_exactly(
    overrides: tuple[str, ...], ranks: int, source: Path, batch: TrainBatch, tmp_path: Path
) -> None:
    config = training.make_config(*TRAIN, *COSINE, "train.clip_grad=1.0", *overrides)
    for straight, resumed in run_ranks(interrupted_run, ranks, config, source, batch, tmp_path):
        assert resumed[0] == straight[0]
        assert equal(resumed[1], straight[1])
        if straight[2] is not None:
            assert np.array_equal(resumed[2].values, straight[2].values)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank_{rank:05d}.pt" for rank in range(ranks)]


def longer_run(rank: Rank, config: RunConfig, model_dir: Path, batch: TrainBatch, folder: Path) -> list[float]:
    """Learning rates after a checkpoint of a run of four steps is loaded by one of eight."""
    with training.trainer(rank, config, model_dir) as worker:
        worker.set_total_steps(4)
        for _ in range(4):
            worker.train_step(batch)
        worker.save_checkpoint(folder)
    with training.trainer(rank, config, model_dir) as worker:
        worker.set_total_steps(8)
        worker.load_checkpoint(folder)
        return [step.lr for step in [worker.train_step(batch) for _ in range(3)] if step is not None]


def test_longer_resumed_run_decays_to_its_own_end(source: Path, batch: TrainBatch, tmp_path: Path) -> None:
    config = training.make_config(*TRAIN, "train.lr_schedule.kind=linear")
    (rates,) = run_ranks(longer_run, 1, config, source, batch, tmp_path)
    assert rates == pytest.approx([1e-3 * (1 - step / 8) for step in (4, 5, 6)], rel=1e-9)


def load_only(rank: Rank, config: RunConfig, model_dir: Path, folder: Path) -> None:
    with training.trainer(rank, config, model_dir) as worker:
        worker.load_checkpoint(folder)


def test_absent_and_foreign_checkpoints_are_refused(source: Path, tmp_path: Path) -> None:
    config = training.make_config(*TRAIN)
    with pytest.raises(RankError, match=r"rank_00000\.pt does not exist: the checkpoint was written by fewer ranks"):
        run_ranks(load_only, 1, config, source, tmp_path)
    torch.save({"format": 0}, tmp_path / "rank_00000.pt")
    with pytest.raises(RankError, match="has format 0, this version reads 2"):
        run_ranks(load_only, 1, config, source, tmp_path)
