"""One place that receives a run's metrics and events, and hands them to files, sinks and the display."""

from __future__ import annotations

import time
from typing import Any

from relax.config.schema import RunConfig
from relax.tracking.progress import ProgressDisplay
from relax.tracking.run_dir import JsonlWriter, RunDir
from relax.tracking.sinks import build_sinks


class Tracker:
    """Writes `metrics.jsonl` (always), `events.jsonl` and the optional sinks.

    Steps are rollout ids and never go back, one row each. Evaluation metrics belong to the step whose rollout starts
    from the evaluated weights, so they are held until that row is written.
    """

    def __init__(self, config: RunConfig, run_dir: RunDir) -> None:
        self._sinks = build_sinks(config, run_dir.root)
        self._metrics = JsonlWriter(run_dir.metrics_file)
        self._events = JsonlWriter(run_dir.events_file)
        self.display = ProgressDisplay(enabled=config.tracking.progress)
        self.held: dict[str, float] = {}
        """Metrics that wait for the row of the next step."""

    def hold(self, metrics: dict[str, float]) -> None:
        """Keep metrics for the row of the next step."""
        self.held |= metrics

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of one rollout, with those held for it."""
        row = {**metrics, **self.held}
        self.held = {}
        self._metrics.write({"step": step, **row})
        for sink in self._sinks:
            sink.log(step, row)

    def log_held(self, step: int) -> None:
        """Record held metrics that no rollout follows (the evaluation at the end)."""
        if self.held:
            self.log(step, {})

    def event(self, step: int, kind: str, **details: Any) -> None:
        """Record something that happened."""
        self._events.write({"step": step, "time": time.time(), "event": kind, **details})

    def close(self) -> None:
        """Flush and close everything."""
        self.display.stop()
        self._metrics.close()
        self._events.close()
        for sink in self._sinks:
            sink.close()
