"""Plain checkpoints: written aside, renamed, then `latest` moves. A stopped run goes on from there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from relax.config.errors import ConfigError
from relax.runtime.run import Run
from relax.tracking.files import write_json_atomic, write_text_atomic

LATEST = "latest"
"""File in `checkpoints/` that names the newest complete checkpoint."""


def save_checkpoint(run: Run, rollout_id: int) -> None:
    """Save everything after rollout `rollout_id`, and remove all but the newest `save.keep`."""
    folder = run.run_dir.checkpoints / f"step_{rollout_id:06d}"
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    run.trainer.save_checkpoint(partial)
    state = {
        "rollout_id": rollout_id,
        "ledger": run.ledger.state(),
        "recent_rewards": run.recent_rewards,
        "held_metrics": run.tracker.held,
    }
    write_json_atomic(partial / "state.json", state)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    write_text_atomic(run.run_dir.checkpoints / LATEST, folder.name)
    run.tracker.event(rollout_id, "saved", folder=str(folder))
    complete = sorted(run.run_dir.checkpoints.glob("step_*"))
    for old in complete[: -run.config.save.keep]:
        shutil.rmtree(old)


def latest_checkpoint(checkpoints: Path) -> tuple[Path, dict[str, Any]]:
    """Folder and state of the newest checkpoint.

    Raises:
        ConfigError: the run has none.
    """
    pointer = checkpoints / LATEST
    if not pointer.is_file():
        raise ConfigError(
            f"resume={checkpoints.parent} has no checkpoint ({pointer} is absent): it was run without save.interval, "
            "or stopped before the first save"
        )
    folder = checkpoints / pointer.read_text(encoding="utf-8").strip()
    if not (folder / "state.json").is_file():
        raise ConfigError(f"resume={checkpoints.parent}: {pointer} names {folder.name}, which holds no state.json")
    return folder, json.loads((folder / "state.json").read_text(encoding="utf-8"))
