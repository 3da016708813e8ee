"""Worker processes for tests that need ranks: torch's and Megatron's groups are global to a process.

`run_ranks` calls a module-level function on the first `world_size` of a few spawned processes. They stay alive between
calls, because importing Megatron costs seconds; a failure or a time-out kills them all, and the next call starts anew.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_spawn = multiprocessing.get_context("spawn")
_processes: list[_Process] = []


class RankError(RuntimeError):
    """A rank raised, died or did not answer in time."""


@dataclass
class Rank:
    """What a function is told about the process it runs in."""

    rank: int
    world_size: int
    folder: Path
    """Scratch folder of this call, the same on all ranks."""
    _stores: Any = field(default_factory=itertools.count)

    def init_method(self) -> str:
        """Address of a fresh process group; every rank must ask in the same order."""
        return f"file://{self.folder}/store_{next(self._stores)}"


@dataclass
class _Process:
    process: Any
    pipe: Connection


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, timeout_seconds: float = 120.0, **kwargs: Any
) -> list[Any]:
    """`function(Rank, *args, **kwargs)` on every rank; the results in the order of ranks.

    Raises:
        RankError: with the tracebacks of the ranks that failed.
    """
    while len(_processes) < world_size:
        _processes.append(_start())
    ranks = _processes[:world_size]
    folder = Path(tempfile.mkdtemp(prefix="relax-ranks-"))
    deadline = time.monotonic() + timeout_seconds
    try:
        for rank, item in enumerate(ranks):
            item.pipe.send((function, Rank(rank, world_size, folder), args, kwargs))
        results: dict[int, Any] = {}
        while len(results) < world_size:
            for rank, item in enumerate(ranks):
                if rank not in results and item.pipe.poll(0.02):
                    results[rank] = _receive(item, rank)
            if time.monotonic() > deadline:
                missing = sorted(set(range(world_size)) - set(results))
                raise RankError(f"{function.__name__}: ranks {missing} gave no answer in {timeout_seconds} s")
        return [results[rank] for rank in range(world_size)]
    except BaseException:
        kill_all()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kill_all() -> None:
    """End every worker process at once."""
    for item in _processes:
        item.process.kill()
        item.process.join(10)
        item.pipe.close()
    _processes.clear()


atexit.register(kill_all)


def _receive(item: _Process, rank: int) -> Any:
    try:
        failure, value = item.pipe.recv()
    except EOFError as error:
        item.process.join(5)
        raise RankError(f"rank {rank} died with exit code {item.process.exitcode}") from error
    if failure:
        raise RankError(f"rank {rank} raised:\n{value}")
    return value


def _start() -> _Process:
    here, there = _spawn.Pipe()
    # read by the libraries when they load: one compute thread a process
    os.environ["OMP_NUM_THREADS"] = "1"
    process = _spawn.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    return _Process(process, here)


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, rank, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            answer = (False, function(rank, *args, **kwargs))
        except BaseException:  # noqa: BLE001 - the parent raises it again
            answer = (True, traceback.format_exc())
        pipe.send(answer)
