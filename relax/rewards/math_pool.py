"""`MathPool`: worker processes that grade with math-verify, each answer with a hard time-out."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

START_TIMEOUT_SECONDS = 120.0
"""Longest wait for a worker to import math-verify."""
ITEMS_A_WORKER = 64
"""A further worker starts for each so many items: a worker takes a second to start, an item about 1 ms."""


class MathWorkerError(RuntimeError):
    """A worker did not start, or died of something other than a time-out."""


class _Worker:
    """One process. Life: `starting → ready ⇄ busy → stopped` (after a time-out it is killed, never used again)."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "relax.rewards.math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._buffer = b""
        self._ready = False

    @property
    def _stdout(self) -> int:
        if self._process.stdout is None:
            raise MathWorkerError("the math worker has no stdout")
        return self._process.stdout.fileno()

    def ask(self, label: str, response: str, timeout_seconds: float) -> bool | None:
        """The worker's verdict.

        Raises:
            TimeoutError: no answer in time. The caller must `stop` the worker.
        """
        if not self._ready:
            first = self._line(START_TIMEOUT_SECONDS)
            if first != "ready":
                raise MathWorkerError(f"the math worker said {first!r} instead of 'ready'")
            self._ready = True
        if self._process.stdin is None:
            raise MathWorkerError("the math worker has no stdin")
        self._process.stdin.write(json.dumps([label, response, timeout_seconds]).encode() + b"\n")
        self._process.stdin.flush()
        verdict: bool | None = json.loads(self._line(timeout_seconds))
        return verdict

    def _line(self, timeout_seconds: float) -> str:
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise TimeoutError(f"no answer within {timeout_seconds} s")
            chunk = os.read(self._stdout, 65536)
            if not chunk:
                raise MathWorkerError(
                    f"the math worker exited with status {self._process.wait()}; its message is on stderr "
                    "(is math-verify installed?)"
                )
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def stop(self) -> None:
        """Kill the process and free its pipes."""
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was still to be written is of no use any more
                    pipe.close()


class MathPool:
    """At most `max_workers` processes, started when there is work for them and kept until `close`."""

    def __init__(self, *, max_workers: int, timeout_seconds: float) -> None:
        self._max_workers = max_workers
        self._timeout_seconds = timeout_seconds
        self._workers: list[_Worker] = []

    def grade(self, items: Sequence[tuple[str, str]]) -> list[bool | TimeoutError | None]:
        """For each (label, response): equal or not, None when the label cannot be read, or the TimeoutError.

        Raises:
            MathWorkerError: a worker did not start or died.
        """
        wanted = min(self._max_workers, -(-len(items) // ITEMS_A_WORKER))
        while len(self._workers) < wanted:
            self._workers.append(_Worker())
        verdicts: list[bool | TimeoutError | None] = [None] * len(items)
        errors: list[Exception] = []
        if wanted == 1:
            self._serve(0, 0, 1, items, verdicts, errors)
        elif wanted > 1:
            threads = [
                threading.Thread(target=self._serve, args=(slot, slot, wanted, items, verdicts, errors), daemon=True)
                for slot in range(wanted)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        return verdicts

    def _serve(
        self,
        slot: int,
        first: int,
        step: int,
        items: Sequence[tuple[str, str]],
        verdicts: list[bool | TimeoutError | None],
        errors: list[Exception],
    ) -> None:
        try:
            for i in range(first, len(items), step):
                try:
                    verdicts[i] = self._workers[slot].ask(*items[i], self._timeout_seconds)
                except TimeoutError as timeout:
                    verdicts[i] = timeout
                    self._workers[slot].stop()
                    self._workers[slot] = _Worker()
        except (MathWorkerError, OSError, ValueError) as error:  # handed to the calling thread
            errors.append(error)

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            worker.stop()
        self._workers = []
