"""What README and CONTRIBUTING say is true: their commands and recipes work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import relax.check
import relax.launch
import relax.plan
from relax.config.check import resolve_and_check
from relax.config.compose import compose_run, conf_dir
from relax.config.errors import ConfigError
from tests.helpers.runs import ROOT, train

README = (ROOT / "README.md").read_text(encoding="utf-8")
LAUNCHERS = (ROOT / "docs/launchers.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs/README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^\.venv/bin/python -m relax\.train (.*?)(?:\s+#.*)?$", re.MULTILINE)


LOOKING = re.compile(r"^(?:\.venv/bin/)?python -m relax\.(?:check|plan) [^#\n]*", re.MULTILINE)


@pytest.mark.parametrize("line", LOOKING.findall(README) + LOOKING.findall(INDEX))
def test_every_check_and_plan_command_of_the_docs_is_valid(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, *overrides = line.split(" -m ")[1].split()
    main = {"relax.check": relax.check.main, "relax.plan": relax.plan.main}[module]
    assert main(overrides) == 0, capsys.readouterr().out


@pytest.mark.parametrize("line", re.findall(r"^(?:\.venv/bin/)?python -m relax\.launch (.*)$", LAUNCHERS, re.MULTILINE))
def test_every_launch_command_of_the_docs_renders(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert relax.launch.main(shlex.split(line)) == 0, capsys.readouterr().err


def train_commands() -> list[list[str]]:
    return [match.group(1).split() for match in COMMAND.finditer(README)]


@pytest.mark.parametrize("overrides", train_commands(), ids=" ".join)
def test_every_training_command_of_the_readme_is_understood(overrides: list[str]) -> None:
    if overrides == ["--help"]:
        done = subprocess.run(
            [sys.executable, "-m", "relax.train", "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0
        assert "tiny_qwen3" in done.stdout
    elif overrides == ["train.num_rolout=10"]:
        with pytest.raises(ConfigError, match=r"did you mean train\.num_rollout"):
            compose_run(overrides)
    else:
        config = compose_run(overrides)
        if config.model.source is None:
            resolve_and_check(config)


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make (run|test-full|test|setup-gpu)\b", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_a_model_is_added_with_one_file_and_no_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import shutil

    copied = tmp_path / "conf"
    shutil.copytree(conf_dir(), copied)
    (copied / "model/my_model.yaml").write_text("name: my_model\nsource: ${paths.model_dir}/my-model\n")
    monkeypatch.setattr("relax.config.compose.conf_dir", lambda: copied)
    assert compose_run(["model=my_model"]).model.source == "models/my-model"


def test_a_custom_reward_and_a_task_length_run(tmp_path: Path) -> None:
    run = train(
        tmp_path / "run",
        "reward=custom",
        "reward.path=tests.unit.rewards.reward_functions:length",
        "data.task_args.length=3",
        "train.num_rollout=1",
        "train.sft.num_steps=0",
        "eval=none",
        "rollout.batch_size=2",
    )
    assert run.returncode == 0, run.output[-2000:]
    assert len(run.rewards) == 1


def test_the_wheel_brings_the_config_groups(tmp_path: Path) -> None:
    import zipfile

    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {"relax/conf/config.yaml", "relax/conf/model/tiny_qwen3.yaml", "relax/train.py"} <= set(names)
