"""`report.html` of one run: curves of reward, loss, zero-std fraction and phase times, self-contained."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relax.tracking.files import read_jsonl, write_text_atomic

PHASES = (
    "rollout_time",
    "reward_time",
    "log_probs_time",
    "ref_log_probs_time",
    "actor_train_time",
    "update_weights_time",
)
"""Phases of a step, in order; together they are nearly all of `perf/step_time`."""

# Okabe–Ito: told apart under every common colour blindness
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} td {{ padding: .15rem 1rem .15rem 0; }} td:last-child {{ text-align: right; }}
</style></head><body>
<h1>{title}</h1>
<table>{summary}</table>
{plots}
</body></html>
"""


def write_report(run_root: Path, *, title: str, summary: Sequence[tuple[str, str]]) -> Path:
    """Write `report.html` from `metrics.jsonl`; returns its path. A run without a step gets a page without curves."""
    rows = [row for row in read_jsonl(run_root / "metrics.jsonl") if "rollout/reward" in row]
    evals = [row for row in read_jsonl(run_root / "metrics.jsonl") if any(k.startswith("eval/") for k in row)]
    cells = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in summary)
    path = run_root / "report.html"
    plots = _plots(rows, evals) if rows else "<p>No rollout was finished.</p>"
    write_text_atomic(path, _PAGE.format(title=html.escape(title), summary=cells, plots=plots))
    return path


def _plots(rows: list[dict[str, Any]], evals: list[dict[str, Any]]) -> str:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=2, cols=2, subplot_titles=("reward", "loss", "zero-std groups (share)", "phase times (s a rollout)")
    )
    steps = [row["step"] for row in rows]

    def curve(row: int, column: int, name: str, xs: list[Any], ys: list[Any], colour: int, **options: Any) -> None:
        line = {"color": COLOURS[colour % len(COLOURS)], "width": 1.5}
        figure.add_trace(go.Scatter(x=xs, y=ys, name=name, mode="lines", line=line, **options), row=row, col=column)

    curve(1, 1, "rollout/reward", steps, [row["rollout/reward"] for row in rows], 0)
    names = sorted({name for row in evals for name in row if name.startswith("eval/") and name.endswith("/mean")})
    for index, name in enumerate(names):
        points = [(row["step"], row[name]) for row in evals if name in row]
        figure.add_trace(
            go.Scatter(
                x=[p[0] for p in points],
                y=[p[1] for p in points],
                name=name,
                mode="lines+markers",
                line={"color": COLOURS[(index + 1) % len(COLOURS)]},
            ),
            row=1,
            col=1,
        )
    curve(1, 2, "train/loss", steps, [row.get("train/loss") for row in rows], 0)
    curve(2, 1, "rollout/zero_std_fraction", steps, [row["rollout/zero_std_fraction"] for row in rows], 0)
    for index, phase in enumerate(PHASES):
        values = [row.get(f"perf/{phase}") for row in rows]
        if any(values):
            curve(2, 2, phase.removesuffix("_time"), steps, values, index, stackgroup="phases")
    figure.update_layout(
        height=760,
        hovermode="x unified",
        margin={"l": 40, "r": 20, "t": 40, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(128,128,128,0.06)",
        font={"color": "#888"},
        legend={"orientation": "h", "y": -0.08},
    )
    figure.update_xaxes(title_text="rollout", gridcolor="rgba(128,128,128,0.2)", zeroline=False)
    figure.update_yaxes(gridcolor="rgba(128,128,128,0.2)", zeroline=False)
    return figure.to_html(full_html=False, include_plotlyjs=True, config={"responsive": True, "displaylogo": False})
