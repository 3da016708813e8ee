"""When something that happens every so often is due. Evaluation and saving ask the same function."""

from __future__ import annotations


def due(rollout_id: int, interval: int | None) -> bool:
    """Whether the work of every `interval` rollouts is due after rollout `rollout_id` (from 0); None is never."""
    return interval is not None and (rollout_id + 1) % interval == 0
