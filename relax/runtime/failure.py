"""Why a run failed, in one sentence; the whole traceback goes into the run directory."""

from __future__ import annotations

import re
import traceback

import ray

from relax.config.errors import RunFailedError
from relax.tracking.files import write_text_atomic
from relax.tracking.run_dir import RunDir


def failure_reason(error: BaseException) -> str:
    """The cause behind Ray's wrapping."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"{type(error.cause).__name__}: {str(error.cause).splitlines()[0] if str(error.cause) else ''}"
    if isinstance(error, ray.exceptions.ActorDiedError):
        text = str(error)
        name, pid = re.search(r"(?m)^\s*name: (\S+)", text), re.search(r"(?m)^\s*pid: (\d+)", text)
        who = name[1] if name else "an actor"
        return f"{who}{f' (process {pid[1]})' if pid else ''} died: killed, out of memory, or crashed"
    return f"{type(error).__name__}: {error}"


def record_failure(error: BaseException, run_dir: RunDir) -> RunFailedError:
    """Write `error.txt` and build the error that a person sees."""
    reason = failure_reason(error)
    path = run_dir.root / "error.txt"
    write_text_atomic(path, "".join(traceback.format_exception(error)))
    lines = [f"the run failed: {reason}", f"  traceback: {path}"]
    if (run_dir.root / "logs").is_dir():
        lines.append(f"  output of the actors: {run_dir.root / 'logs'}")
    if run_dir.checkpoints.is_dir():
        lines.append(f"  to go on from the last checkpoint: resume={run_dir.root}")
    return RunFailedError("\n".join(lines))
