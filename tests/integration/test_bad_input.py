"""Bad input is a one-screen error, exit code 2, before Ray starts and before a run directory is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import relax.train
from tests.helpers.runs import ROOT

SCREEN_LINES = 24
GSM8K_ROW = '{"question": "1+1?", "answer": "so #### 2"}\n'
FILE_DATA = ["data=gsm8k", "data.chat_template=false", "eval=none"]


def run_in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_dir: Path, *overrides: str
) -> str:
    """Run the entry point here with a Ray that must not start; the error text."""
    import ray

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", started)
    monkeypatch.setattr(sys, "argv", ["relax-train", f"hydra.run.dir={run_dir}", *overrides])
    with pytest.raises(SystemExit) as caught:
        relax.train.main()
    assert caught.value.code == 2
    assert not run_dir.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.source=/nowhere", "model.init=pretrained"], ["model.source = /nowhere", "an existing folder"]),
        (["data=file", "data.path=/nowhere.jsonl"], ["data.path = /nowhere.jsonl", "an existing file"]),
        (["parallelism.tensor=3"], ["parallelism.tensor = 3", "a divisor of num_attention_heads=4"]),
        (["train.global_batch_size=100"], ["train.global_batch_size = 100", "a divisor of the 256 samples"]),
        (["rollout.temperature=0"], ["rollout.temperature = 0", "above 0"]),
        (["rollout.temperature=-1"], ["rollout.temperature = -1", "above 0"]),
        (["train.foo=1"], ["unknown key train.foo"]),
        (["+train.foo=1"], ["unknown key train.foo"]),
        (["train.lr=fast"], ["train.lr=fast", "could not be converted to Float"]),
        (["launcher.num_gpus=64", "parallelism.data=1"], ["launcher.num_gpus = 64", "GPUs of this machine"]),
        (["data.task=reverze"], ["reverze", "reverse"]),
        (["rollout.max_response_len=62"], ["max_position_embeddings"]),
        (["reward=custom", "reward.path=nosuch_module:f"], ["nosuch_module"]),
    ],
)
def test_the_error_names_option_value_and_what_is_allowed(
    overrides: list[str],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    text = run_in_process(monkeypatch, capsys, tmp_path / "run", *overrides)
    for part in expected:
        assert part in text
    assert len(text.splitlines()) <= SCREEN_LINES
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ["it is empty"]),
        (GSM8K_ROW + "{broken\n", ["rows.jsonl", "line 2"]),
        (GSM8K_ROW + '{"question": "x"}\n', ["line 2", "answer"]),
    ],
)
def test_a_malformed_dataset_is_named_by_file_and_line(
    content: str,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    text = run_in_process(monkeypatch, capsys, tmp_path / "run", *FILE_DATA, f"data.path={path}")
    for part in expected:
        assert part in text


def test_the_command_itself_exits_2_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relax.train", "+train.foo=1", f"hydra.run.dir={tmp_path / 'run'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("unknown key train.foo")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
