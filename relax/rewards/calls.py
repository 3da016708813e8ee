"""Call a Python scorer on many samples, each with a finite time-out, in daemon threads.

A thread cannot be stopped: one that hangs is left behind (it ends with the process) and replaced. A scorer that holds
the interpreter lock for ever (a runaway regular expression) blocks every thread; such code needs a process of its own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from relax.data.sample import Sample

Scorer = Callable[[Sample], Any]
POLL_SECONDS = 0.02
"""Longest time until an overdue call is noticed."""


class RewardError(RuntimeError):
    """A scorer raised, or returned something that is no reward. The message names the sample."""


class _Thread:
    """A daemon thread that takes indices from a queue; `started` is when its current call began."""

    def __init__(
        self,
        scorer: Scorer,
        samples: Sequence[Sample],
        todo: queue.SimpleQueue[int],
        done: queue.SimpleQueue[tuple[int, Any]],
    ) -> None:
        self._scorer, self._samples, self._todo, self._done = scorer, samples, todo, done
        self.current: tuple[int, float] | None = None
        self.abandoned = False
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while not self.abandoned:
            try:
                index = self._todo.get_nowait()
            except queue.Empty:
                return
            self.current = (index, time.monotonic())
            outcome: Any
            try:
                outcome = self._scorer(self._samples[index])
            except BaseException as error:  # noqa: BLE001 - foreign code; raised again by the caller
                outcome = error
            self.current = None
            self._done.put((index, outcome))


def call_each(scorer: Scorer, samples: Sequence[Sample], *, num_threads: int, timeout_seconds: float) -> list[Any]:
    """The scorer's value for each sample; a TimeoutError object where it took longer than `timeout_seconds`.

    Raises:
        RewardError: the scorer raised; the message names the sample, the cause is chained.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for index in range(len(samples)):
        todo.put(index)
    threads = [_Thread(scorer, samples, todo, done) for _ in range(min(num_threads, len(samples)))]
    outcomes: dict[int, Any] = {}
    try:
        while len(outcomes) < len(samples):
            try:
                index, outcome = done.get(timeout=POLL_SECONDS)
            except queue.Empty:
                threads = _replace_overdue(threads, outcomes, timeout_seconds, (scorer, samples, todo, done))
                continue
            if index in outcomes:
                continue  # the late answer of a call that was given up
            if isinstance(outcome, BaseException):
                raise RewardError(
                    f"the reward raised {type(outcome).__name__} on sample {samples[index].index}: {outcome}"
                ) from outcome
            outcomes[index] = outcome
    finally:
        for thread in threads:
            thread.abandoned = True
    return [outcomes[index] for index in range(len(samples))]


def _replace_overdue(
    threads: list[_Thread], outcomes: dict[int, Any], timeout_seconds: float, work: Any
) -> list[_Thread]:
    kept = []
    for thread in threads:
        current = thread.current
        if current is None or time.monotonic() - current[1] <= timeout_seconds:
            kept.append(thread)
            continue
        thread.abandoned = True
        outcomes[current[0]] = TimeoutError(f"the reward took longer than {timeout_seconds} s")
        kept.append(_Thread(*work))
    return kept
