"""Composition: groups, enums, toggles and unknown keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from relax.config.compose import (
    ALGORITHMS,
    compose_run,
    conf_dir,
    known_keys,
    load_run_config,
    resume_run_config,
)
from relax.config.errors import ConfigError
from relax.config.schema import DType, ModeKind, OpdConfig, RunConfig


def test_the_default_composes_to_the_typed_config() -> None:
    config = compose_run()
    assert isinstance(config, RunConfig)
    assert config.model.name == "tiny_qwen3"
    assert config.eval.sets["reverse"].n_samples_per_prompt == 4


@pytest.mark.parametrize("group", sorted(p.name for p in conf_dir().iterdir() if p.is_dir() and p.name != "experiment"))
def test_every_option_of_a_group_composes(group: str) -> None:
    for option in sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")):
        compose_run([f"+{group}={option}" if group == "perf" else f"{group}={option}"])


def test_every_experiment_composes() -> None:
    for path in (conf_dir() / "experiment").glob("*.yaml"):
        compose_run([f"experiment={path.stem}"])


def test_enums_take_their_natural_value() -> None:
    config = compose_run(["model.dtype=bf16", "mode.kind=async"])
    assert config.model.dtype is DType.bf16
    assert config.mode.kind is ModeKind("async")


def test_toggles_compose_alone_and_as_a_list() -> None:
    assert compose_run(["+perf=skip_zero_adv"]).perf.skip_zero_adv
    both = compose_run(["+perf=[skip_zero_adv,reuse_log_probs]"]).perf
    assert (both.skip_zero_adv, both.reuse_log_probs, both.pack_zero_adv) == (True, True, False)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.num_rolout=3", "train.num_rollout"),
        ("+train.num_rolout=3", "train.num_rollout"),
        ("++train.num_rolout=3", "train.num_rollout"),
        ("+train.foo=1", "unknown key train.foo"),
        ("+foo=1", "unknown key foo"),
        ("+data.foo={bar: 1}", "unknown key data.foo"),
        ("rollout.temprature=1", "rollout.temperature"),
        ("algorithm.distill.top_k=4", "algorithm=opd|opsd|sdpo"),
    ],
)
def test_an_unknown_key_is_an_error_in_every_spelling(override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        compose_run([override])
    assert expected in str(caught.value)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(known_keys()), st.integers(0, 25))
def test_a_misspelt_key_is_an_error_and_the_right_one_is_suggested(key: str, letter: int) -> None:
    misspelt = key[:-1] + chr(ord("a") + letter) + key[-1]
    if misspelt in known_keys():
        return
    with pytest.raises(ConfigError, match="unknown key"):
        compose_run([f"+{misspelt}=1"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.lr=abc", "abc"),
        ("model.dtype=float8", "[fp32, bf16]"),
        ("model=nosuch", "tiny_qwen3"),
        ("+perf=nosuch", "reuse_log_probs"),
        ("=3", "Config group"),
    ],
)
def test_a_wrong_value_names_what_is_allowed(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_run([override])
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) < 12


def test_arguments_of_other_libraries_need_no_plus() -> None:
    config = compose_run(["rollout.sglang.tp_size=2", "data.task_args.length=5"])
    assert config.rollout.sglang == {"tp_size": 2}
    assert config.data.task_args == {"length": 5}


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_config_survives_its_file(algorithm: str, tmp_path: Path) -> None:
    config = compose_run([f"algorithm={algorithm}", "model.dtype=bf16"])
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    assert load_run_config(path) == config


def test_the_algorithm_option_picks_the_dataclass() -> None:
    assert isinstance(compose_run(["algorithm=sdpo"]).algorithm, OpdConfig)


def test_a_resumed_run_refuses_to_change_the_experiment(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.structured(compose_run())))
    assert resume_run_config(tmp_path, ["resume=x", "train.num_rollout=7"]).train.num_rollout == 7
    with pytest.raises(ConfigError, match=r"train\.lr=1 would change the experiment"):
        resume_run_config(tmp_path, ["train.lr=1"])
    with pytest.raises(ConfigError, match="does not exist"):
        resume_run_config(tmp_path / "nowhere", [])
