"""The main job: the default command trains, repeats itself, resumes, and can be interrupted."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from relax.tracking.files import read_jsonl
from tests.helpers.runs import FinishedRun, processes_of, start_and_wait, train

pytestmark = pytest.mark.timeout(400)

SOLVED = 0.9
WINDOW = 5
# one generation and one optimizer step of the default job, small
SHORT = (
    "train.num_rollout=4",
    "train.sft.num_steps=3",
    "train.stop.reward=null",
    "rollout.batch_size=4",
    "save.interval=2",
)


def assert_solved(run: FinishedRun) -> None:
    assert run.returncode == 0, run.output[-3000:]
    assert np.mean(run.rewards[-WINDOW:]) > SOLVED


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
def test_the_default_job_solves_its_task_in_time(seed: int, tmp_path: Path) -> None:
    start = time.monotonic()
    run = train(tmp_path / "run", f"seed={seed}")
    assert_solved(run)
    assert time.monotonic() - start < 90
    ledger = json.loads((run.root / "ledger.json").read_text())
    assert ledger["outcome"] == "finished"
    assert ledger["open"] == 0
    assert ledger["handed_out"] == sum(ledger["ended"].values())
    for name in ("config.yaml", "manifest.json", "resolution.json", "report.html", "events.jsonl", "model/config.json"):
        assert (run.root / name).is_file()


@pytest.mark.parametrize("layout", ["parallelism=tp2", pytest.param("parallelism=dp2", marks=pytest.mark.full)])
def test_two_processes_solve_the_task_too(layout: str, tmp_path: Path) -> None:
    assert_solved(train(tmp_path / "run", layout, timeout_seconds=380))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A short run that was never stopped."""
    run = train(tmp_path_factory.mktemp("straight") / "run", *SHORT)
    assert run.returncode == 0, run.output[-3000:]
    assert len(run.rewards) == 4
    return run


def test_the_same_seed_gives_the_same_metrics(straight: FinishedRun, tmp_path: Path) -> None:
    assert train(tmp_path / "run", *SHORT).metrics_without_times == straight.metrics_without_times


@pytest.mark.full
def test_another_seed_gives_other_metrics(straight: FinishedRun, tmp_path: Path) -> None:
    assert train(tmp_path / "run", *SHORT, "seed=1").metrics_without_times != straight.metrics_without_times


def test_a_stopped_run_goes_on_where_it_was(straight: FinishedRun, tmp_path: Path) -> None:
    stopped = train(tmp_path / "stopped", *SHORT, "train.num_rollout=3")
    assert stopped.returncode == 0, stopped.output[-3000:]
    resumed = train(tmp_path / "ignored", f"resume={stopped.root}", "train.num_rollout=4")
    assert resumed.returncode == 0, resumed.output[-3000:]
    assert not (tmp_path / "ignored").exists()
    # the rollout after the last checkpoint was dropped and run again; no step appears twice
    steps = [row["step"] for row in stopped.metrics]
    assert steps == sorted(set(steps))
    assert stopped.rewards == straight.rewards


def test_a_finished_run_has_nothing_to_go_on_with(straight: FinishedRun, tmp_path: Path) -> None:
    again = train(tmp_path / "ignored", f"resume={straight.root}")
    assert again.returncode == 2
    assert "4 of 4 rollouts are done, there is nothing to go on with" in again.output
    assert len(straight.rewards) == 4


def test_every_optional_part_of_the_loss_runs(tmp_path: Path) -> None:
    run = train(
        tmp_path / "run",
        *SHORT,
        "train.num_rollout=2",
        "train.num_steps_per_rollout=2",
        "rollout.num_engines=2",
        "algorithm.kl.loss_coef=0.01",
        "algorithm.importance.kind=tis",
        "algorithm.loss.entropy_coef=0.001",
        "algorithm.loss.dual_clip=3",
        "algorithm.loss.reduction=sample_mean",
        "model.dtype=bf16",
        "eval.interval=1",
        "tracking.tensorboard=true",
        "tracking.wandb.mode=offline",
    )
    assert run.returncode == 0, run.output[-3000:]
    row = run.metrics[0]
    assert {"train/kl_loss", "train/tis_ess", "train/entropy", "eval/reverse/mean", "eval/reverse/pass@4"} <= set(row)
    assert 0 < row["train/tis_ess"] <= 1.0001
    assert row["perf/ref_log_probs_time"] > 0


def test_ctrl_c_ends_all_processes_and_leaves_a_readable_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start_and_wait(run_dir, "train.stop.reward=null")
    try:
        assert processes_of(run_dir)
        interrupted = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=10)
        while processes_of(run_dir) and time.monotonic() - interrupted < 10:
            time.sleep(0.1)
        assert processes_of(run_dir) == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert json.loads((run_dir / "ledger.json").read_text())["outcome"] == "interrupted"
    assert len(read_jsonl(run_dir / "metrics.jsonl")) >= 2
    assert "interrupted" in (run_dir / "report.html").read_text()
