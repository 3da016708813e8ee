"""Run directory, manifest and report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relax.config.compose import compose_run
from relax.config.errors import ConfigError
from relax.tracking.files import read_jsonl, write_jsonl_atomic
from relax.tracking.manifest import redact
from relax.tracking.report import write_report
from relax.tracking.run_dir import RunDir
from relax.tracking.sinks import TensorBoardSink, WandbSink
from relax.tracking.summary import summarize
from relax.tracking.tracker import Tracker


def metric_row(step: int) -> dict[str, float]:
    phases = ("rollout", "reward", "log_probs", "ref_log_probs", "actor_train", "update_weights")
    times = {f"perf/{name}_time": 0.1 for name in phases}
    return {
        "step": step,
        "rollout/reward": 0.1 * step,
        "rollout/zero_std_fraction": 0.5,
        "train/loss": -0.1,
        "perf/step_time": 0.7,
        "perf/step_token_per_s": 100.0,
        **times,
    }


def test_a_torn_last_line_is_left_out_and_a_torn_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a"\n{"a": 2}\n')
    with pytest.raises(json.JSONDecodeError):
        read_jsonl(path)
    assert read_jsonl(tmp_path / "absent.jsonl") == []


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_jsonl_atomic(run.metrics_file, [{"step": step} for step in range(6)])
    for step in range(6):
        write_jsonl_atomic(run.rollout_file("train", step), [{"step": step}])
        write_jsonl_atomic(run.rollout_file("eval", step), [{"step": step}])
    run.truncate_after(3)
    assert [row["step"] for row in read_jsonl(run.metrics_file)] == [0, 1, 2, 3]
    assert sorted(int(p.stem) for p in tmp_path.glob("rollouts/train/*")) == [0, 1, 2, 3]
    # the evaluation of version 4 belongs to the state after rollout 3
    assert sorted(int(p.stem) for p in tmp_path.glob("rollouts/eval/*")) == [0, 1, 2, 3, 4]


def test_a_fresh_run_refuses_a_used_folder(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create(resuming=False)
    write_jsonl_atomic(run.metrics_file, [{"step": 0}])
    with pytest.raises(ConfigError, match="holds a run already"):
        run.create(resuming=False)
    run.create(resuming=True)


@pytest.mark.parametrize("secret", ["wandb.api_key=abc123", "HF_TOKEN=abc123", "x=hf_abcdefghijklmnopqrstuv"])
def test_secrets_are_redacted(secret: str) -> None:
    assert "abc" not in redact(secret)
    assert "<redacted>" in redact(secret)


@pytest.mark.parametrize("harmless", ["data.prompt_key=question", "train.max_tokens_per_gpu=4096", "train.lr=1e-3"])
def test_ordinary_options_are_not_redacted(harmless: str) -> None:
    assert redact(harmless) == harmless


def test_held_metrics_join_the_next_row_and_steps_stay_unique(tmp_path: Path) -> None:
    tracker = Tracker(compose_run(["tracking.progress=false"]), RunDir(tmp_path))
    tracker.hold({"eval/a/mean": 0.5})
    tracker.log(0, {"train/loss": 1.0})
    tracker.log(1, {"train/loss": 2.0})
    tracker.hold({"eval/a/mean": 0.6})
    tracker.log_held(2)
    tracker.log_held(3)
    tracker.close()
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows == [
        {"step": 0, "train/loss": 1.0, "eval/a/mean": 0.5},
        {"step": 1, "train/loss": 2.0},
        {"step": 2, "eval/a/mean": 0.6},
    ]


def test_the_report_is_self_contained_and_shows_every_curve(tmp_path: Path) -> None:
    write_jsonl_atomic(tmp_path / "metrics.jsonl", [*map(metric_row, range(4)), {"step": 4, "eval/a/mean": 1.0}])
    facts = summarize(tmp_path, outcome="finished", seconds=1.0)
    assert ("rollouts", "4") in facts
    page = write_report(tmp_path, title="a <run>", summary=facts).read_text().replace("\\u002f", "/")
    assert "a &lt;run&gt;" in page
    assert 'src="http' not in page
    for name in ("rollout/reward", "train/loss", "rollout/zero_std_fraction", "actor_train", "eval/a/mean"):
        assert name in page


def test_a_run_without_a_step_still_gets_a_page(tmp_path: Path) -> None:
    assert "No rollout was finished" in write_report(tmp_path, title="x", summary=[]).read_text()


def test_optional_sinks_write_into_the_run_directory(tmp_path: Path) -> None:
    config = compose_run(["tracking.wandb.mode=offline"])
    for sink in (TensorBoardSink(tmp_path / "tensorboard"), WandbSink(config, tmp_path)):
        sink.log(0, {"train/loss": 1.0})
        sink.close()
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
