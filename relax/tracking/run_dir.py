"""The run directory: everything needed to read, compare, resume and repeat a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from relax.config.errors import ConfigError
from relax.config.resolve import Change
from relax.config.schema import RunConfig
from relax.tracking.files import read_jsonl, write_json_atomic, write_jsonl_atomic, write_text_atomic


@dataclass(frozen=True)
class RunDir:
    """Paths and writers of one run directory."""

    root: Path

    @property
    def metrics_file(self) -> Path:
        """One line a rollout."""
        return self.root / "metrics.jsonl"

    @property
    def events_file(self) -> Path:
        """Publications, saves, interruptions."""
        return self.root / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def initial_model(self) -> Path:
        """Folder of a randomly initialised model."""
        return self.root / "initial_model"

    @property
    def final_model(self) -> Path:
        """Folder of the trained model."""
        return self.root / "model"

    def rollout_file(self, kind: str, step: int) -> Path:
        """Samples of one rollout (`train`) or evaluation (`eval`)."""
        return self.root / "rollouts" / kind / f"{step:06d}.jsonl"

    def create(self, *, resuming: bool) -> None:
        """Make the folder.

        Raises:
            ConfigError: a fresh run would write into a folder that holds one.
        """
        if not resuming and self.metrics_file.exists():
            raise ConfigError(
                f"hydra.run.dir={self.root} holds a run already: choose another folder, or resume={self.root}"
            )
        self.root.mkdir(parents=True, exist_ok=True)

    def write_config(self, config: RunConfig, changes: Sequence[Change]) -> None:
        """`config.yaml` (resolved) and `resolution.json`."""
        write_text_atomic(self.root / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(config)))
        rows = [{"path": c.path, "before": c.before, "after": c.after, "because": c.because} for c in changes]
        write_json_atomic(self.root / "resolution.json", rows)

    def truncate_after(self, last_rollout: int) -> None:
        """Drop what was recorded after rollout `last_rollout`, so that a resumed run's steps never go back."""
        for path in (self.metrics_file, self.events_file):
            if path.exists():
                write_jsonl_atomic(path, [row for row in read_jsonl(path) if row["step"] <= last_rollout])
        for path in self.root.glob("rollouts/*/*.jsonl"):
            if int(path.stem) > last_rollout + (path.parent.name == "eval"):
                path.unlink()


class JsonlWriter:
    """Appends rows to a JSONL file; every row is on disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
