"""A run that fails says why in a few lines, leaves nothing running, and leaves a directory that tells."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.helpers.runs import processes_of, start_and_wait, train

pytestmark = pytest.mark.timeout(200)

REWARDS = "tests.unit.rewards.reward_functions"
SHORT = ("train.sft.num_steps=0", "eval=none", "rollout.batch_size=2", "rollout.n_samples_per_prompt=2")


def check_failed(run_dir: Path, output: str, reason: str) -> None:
    """The message is short, names the reason, and the directory holds it too."""
    message = output[output.index("the run failed:") :]
    assert reason in message
    assert "Traceback" not in output
    assert len(message.splitlines()) <= 5
    ledger = json.loads((run_dir / "ledger.json").read_text())
    assert ledger["outcome"] == "failed"
    assert ledger["open"] == 0
    assert reason in ledger["error"]
    assert "Traceback" in (run_dir / "error.txt").read_text()
    assert reason.split()[0] in (run_dir / "report.html").read_text()


def test_a_reward_that_raises_fails_the_run_with_its_sample(tmp_path: Path) -> None:
    run = train(tmp_path / "run", *SHORT, "reward=custom", f"reward.path={REWARDS}:raises", "reward.require_stop=false")
    assert run.returncode == 1
    check_failed(run.root, run.output, "RewardError: the reward raised KeyError on sample")


@pytest.mark.full
def test_a_reward_that_always_hangs_fails_the_run(tmp_path: Path) -> None:
    hanging = ["reward=custom", f"reward.path={REWARDS}:hangs", "reward.require_stop=false", "reward.timeout_seconds=1"]
    run = train(tmp_path / "run", *SHORT, *hanging)
    assert run.returncode == 1
    check_failed(run.root, run.output, "took longer than reward.timeout_seconds=1")


def test_a_killed_trainer_rank_ends_the_run_in_time(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start_and_wait(run_dir, "train.stop.reward=null", "eval=none")
    try:
        family = processes_of(run_dir)
        trainer = next(child for child in family if "TrainerActor" in " ".join(child.cmdline()))
        os.kill(trainer.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 1
    check_failed(run_dir, output, "trainer-0 (process")
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
