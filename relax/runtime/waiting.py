"""Waiting for Ray with a finite time-out that says what it waited for, and failing at the first failure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray


class ActorTimeoutError(TimeoutError):
    """Some actors did not answer in time."""


def gather(refs: Sequence[Any], *, timeout_seconds: float, what: str) -> list[Any]:
    """Results of `refs` in order. The first failure raises at once, even when another actor hangs because of it.

    Args:
        refs: object references.
        timeout_seconds: bound on the whole wait.
        what: what is awaited, for the message.

    Raises:
        ActorTimeoutError: not all answered in time.
    """
    deadline = time.monotonic() + timeout_seconds
    pending = list(refs)
    results: dict[Any, Any] = {}
    while pending:
        ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise ActorTimeoutError(
                f"waited {timeout_seconds:g} s for {what}: {len(refs) - len(pending)} of {len(refs)} answered"
            )
        results[ready[0]] = ray.get(ready[0])
    return [results[ref] for ref in refs]
