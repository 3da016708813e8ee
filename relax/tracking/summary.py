"""The end of a run: a summary a person reads, and `report.html`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from relax.tracking.files import read_jsonl
from relax.tracking.progress import ProgressDisplay
from relax.tracking.report import PHASES, write_report
from relax.tracking.run_dir import RunDir

WINDOW = 5
"""Rollouts at each end that the summary averages."""


def finish_run(
    run_dir: RunDir, *, outcome: str, seconds: float, display: ProgressDisplay, error: str | None = None
) -> None:
    """Print the closing summary and write the report."""
    facts = summarize(run_dir.root, outcome=outcome, seconds=seconds)
    if error is not None:
        facts.insert(1, ("error", error))
    report = write_report(run_dir.root, title=run_dir.root.name, summary=facts)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in [*facts, ("report", str(report))]:
        table.add_row(name, value)
    display.show(table)


def summarize(run_root: Path, *, outcome: str, seconds: float) -> list[tuple[str, str]]:
    """Facts of a run as (name, text), from its `metrics.jsonl`."""
    rows = read_jsonl(run_root / "metrics.jsonl")
    rollouts = [row for row in rows if "rollout/reward" in row]
    facts = [("outcome", outcome), ("rollouts", str(len(rollouts))), ("wall time", f"{seconds:.1f} s")]
    if rollouts:
        first, last = _mean(rollouts[:WINDOW], "rollout/reward"), _mean(rollouts[-WINDOW:], "rollout/reward")
        facts.append((f"reward (first and last {WINDOW} rollouts)", f"{first:.3f} → {last:.3f}"))
        facts.append(("step time", f"{_mean(rollouts, 'perf/step_time') * 1e3:.0f} ms"))
        facts.append(("tokens/s", f"{_mean(rollouts, 'perf/step_token_per_s'):,.0f}"))
        total = sum(row["perf/step_time"] for row in rollouts)
        shares = [(name, sum(row[f"perf/{name}"] for row in rollouts) / total) for name in PHASES]
        text = ", ".join(f"{name.removesuffix('_time')} {share:.0%}" for name, share in shares if share >= 0.005)
        facts.append(("phases", text))
    for name in sorted({key for row in rows for key in row if key.startswith("eval/") and key.endswith("/mean")}):
        values = [row[name] for row in rows if name in row]
        facts.append((name, " → ".join(f"{value:.3f}" for value in dict.fromkeys((values[0], values[-1])))))
    return facts


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)
