"""Procedural tasks: rows drawn from a seed. Row i depends on (seed, i) alone, not on how many rows are drawn."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from relax.data.errors import DataError, nearest
from relax.data.sample import Messages


@dataclass(frozen=True)
class PromptRow:
    """One row of a dataset, before rendering."""

    prompt: str | Messages
    label: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


TaskFunction = Callable[..., PromptRow]
"""`f(rng, **task_args) -> PromptRow`: draws one row from `rng`."""

_TASKS: dict[str, TaskFunction] = {}


def register_task(name: str) -> Callable[[TaskFunction], TaskFunction]:
    """Decorator: make `f(rng, *, …)` available as `data.task=name`, its keyword arguments as `data.task_args`.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: TaskFunction) -> TaskFunction:
        if name in _TASKS:
            raise ValueError(f"task {name!r} is registered already")
        _TASKS[name] = function
        return function

    return register


def task_names() -> list[str]:
    """Names of the procedural tasks."""
    return sorted(_TASKS)


@register_task("reverse")
def reverse(rng: random.Random, *, length: int = 4) -> PromptRow:
    """`length` random digits and '>'; the answer is the digits in reverse order."""
    if not isinstance(length, int) or length < 1:
        raise ValueError(f"length={length!r} must be an integer of at least 1")
    digits = "".join(rng.choice("0123456789") for _ in range(length))
    return PromptRow(prompt=digits + ">", label=digits[::-1])


def task_rows(task: str | None, *, size: int, seed: int, task_args: dict[str, Any]) -> list[PromptRow]:
    """Rows 0 … size-1 of a procedural task.

    Raises:
        DataError: unknown task or argument, or a value the task refuses.
    """
    function = _TASKS.get(task or "")
    if task is None or function is None:
        raise DataError(f"data.task={task!r} is not a procedural task; {nearest(task or '', _TASKS)}")
    _check_size(size)
    allowed = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in task_args:
        if name not in allowed:
            raise DataError(f"data.task_args.{name} is not an argument of task {task!r}; {nearest(name, allowed)}")
    try:
        # A string seed goes through SHA-512: neighbouring seeds and rows give unrelated draws.
        return [function(random.Random(f"{seed}/{task}/{i}"), **task_args) for i in range(size)]
    except (ValueError, TypeError) as error:
        raise DataError(f"data.task={task!r} refuses data.task_args={task_args}: {error}") from error


def reasoning_gym_rows(task: str | None, *, size: int, seed: int, task_args: dict[str, Any]) -> list[PromptRow]:
    """Rows of a reasoning-gym task. `metadata['reasoning_gym']` keeps the task and its entry, for its own scorer.

    Raises:
        DataError: the library is absent, the task is unknown, or it refuses its arguments.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise DataError(
            "data.kind=reasoning_gym needs the library reasoning-gym; "
            "install it with: pip install 'relax-rl[reasoning-gym]'"
        ) from error
    if task is None or task not in DATASETS:
        raise DataError(f"data.task={task!r} is not a task of reasoning-gym; {nearest(task or '', DATASETS)}")
    _check_size(size)
    try:
        dataset = reasoning_gym.create_dataset(task, size=size, seed=seed, **task_args)
    except (TypeError, ValueError, AssertionError) as error:  # its configs check themselves with assert
        raise DataError(f"reasoning-gym task {task!r} refuses data.task_args={task_args}: {error}") from error
    rows = []
    for i in range(size):
        entry = dataset[i]
        label = None if entry["answer"] is None else str(entry["answer"])
        rows.append(PromptRow(entry["question"], label, {"reasoning_gym": {"task": task, "entry": dict(entry)}}))
    return rows


def _check_size(size: int) -> None:
    if size < 1:
        raise DataError(f"data.size={size} must be at least 1")
