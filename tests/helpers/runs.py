"""Running `relax.train` in a process of its own, and reading what it left."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
