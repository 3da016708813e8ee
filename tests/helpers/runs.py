"""Running `relax.train` in a process of its own, and reading what it left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from relax.tracking.files import read_jsonl

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class FinishedRun:
    """A run that ended."""

    root: Path
    returncode: int
    output: str

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl."""
        return read_jsonl(self.root / "metrics.jsonl")

    @property
    def metrics_without_times(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl without times, rates and memory."""
        return [{k: v for k, v in row.items() if not k.startswith("perf/")} for row in self.metrics]

    @property
    def rewards(self) -> list[float]:
        """Mean reward of every rollout."""
        return [row["rollout/reward"] for row in self.metrics if "rollout/reward" in row]


def train(run_dir: Path, *overrides: str, timeout_seconds: float = 240.0) -> FinishedRun:
    """Run `python -m relax.train` to its end in `run_dir`."""
    done = subprocess.run(
        [sys.executable, "-m", "relax.train", f"hydra.run.dir={run_dir}", *overrides],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    return FinishedRun(run_dir, done.returncode, done.stdout + done.stderr)


MARK = "RELAX_TEST_MARK"
"""Environment variable that all processes of a run inherit."""


def marked_environment(run_dir: Path) -> dict[str, str]:
    """This environment, with a mark of the run."""
    return {**os.environ, MARK: str(run_dir)}


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Living processes that carry the run's mark; Ray's workers are no children of the driver."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def start_and_wait(run_dir: Path, *overrides: str, timeout_seconds: float = 120.0) -> subprocess.Popen[str]:
    """Start a marked run in a session of its own and return it once two rollouts are written.

    Raises:
        TimeoutError: it ended, or took too long; it is killed then.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "relax.train", f"hydra.run.dir={run_dir}", *overrides],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=marked_environment(run_dir),
    )
    deadline = time.monotonic() + timeout_seconds
    while len(read_jsonl(run_dir / "metrics.jsonl")) < 2:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise TimeoutError(f"no two rollouts in {timeout_seconds:g} s: {process.communicate()[0][-2000:]}")
        time.sleep(0.1)
    return process
