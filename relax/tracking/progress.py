"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_INTERVAL_SECONDS = 10.0
"""Least time between two lines where there is no terminal."""


class ProgressDisplay:
    """Shows one phase at a time (`warm-up`, `train`), with the newest metrics."""

    def __init__(self, *, enabled: bool = True, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._live = enabled and self.console.is_terminal
        self._enabled = enabled
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._name, self._total, self._last_line = "", 0, 0.0

    def start(self, name: str, *, total: int, done: int = 0) -> None:
        """Begin a phase of `total` steps."""
        self.stop()
        self._name, self._total, self._last_line = name, total, 0.0
        if self._live:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[metrics]}"),
                console=self.console,
            )
            self._progress.start()
            self._task = self._progress.add_task(name, total=total, completed=done, metrics="")

    def update(self, done: int, metrics: dict[str, str]) -> None:
        """Show `done` steps of the phase and some metrics."""
        text = "  ".join(f"{name} {value}" for name, value in metrics.items())
        if self._progress is not None:
            self._progress.update(self._task, completed=done, metrics=text)
        elif self._enabled and (time.monotonic() - self._last_line >= PLAIN_INTERVAL_SECONDS or done == self._total):
            self._last_line = time.monotonic()
            self.console.print(f"{self._name} {done}/{self._total}  {text}", soft_wrap=True)

    def say(self, text: str) -> None:
        """Print one line above the display."""
        if self._enabled:
            self.console.print(text, soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """Print a table or the like."""
        if self._enabled:
            self.console.print(renderable)

    def stop(self) -> None:
        """End the display of the phase."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
