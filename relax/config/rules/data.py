"""Rules on prompts and rewards. The rows themselves are checked when they are read, before any actor starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from relax.config.rules.base import Finding, Scope, rule
from relax.config.rules.helpers import at_least
from relax.config.schema import DataConfig, DataKind, RewardConfig, RewardKind, RunConfig


def datasets_of(config: RunConfig) -> Iterator[tuple[str, DataConfig]]:
    """Every dataset of a run with its config path."""
    yield "data", config.data
    for name, item in config.eval.sets.items():
        yield f"eval.sets.{name}.data", item.data


def rewards_of(config: RunConfig) -> Iterator[tuple[str, RewardConfig, DataConfig]]:
    """Every reward of a run with its config path and the data it scores."""
    yield "reward", config.reward, config.data
    for name, item in config.eval.sets.items():
        if item.reward is not None:
            yield f"eval.sets.{name}.reward", item.reward, item.data


@rule("data.origin", "data", "eval.sets")
def origin(config: RunConfig) -> Iterator[Finding]:
    """A file has a path, a task has a name."""
    for prefix, data in datasets_of(config):
        if data.kind is DataKind.file and data.path is None:
            yield Finding(
                f"{prefix}.path",
                "null",
                "a JSONL, JSON or Parquet file",
                "kind=file reads prompts from it",
                f"{prefix}.path=FILE",
            )
        if data.kind is not DataKind.file and data.task is None:
            yield Finding(
                f"{prefix}.task",
                "null",
                "the name of a task",
                f"kind={data.kind.value} draws prompts from it",
                f"{prefix}.task=reverse",
            )
        yield from at_least(f"{prefix}.size", data.size, 1, "it counts the rows of an epoch")
        yield from at_least(f"{prefix}.max_rows", data.max_rows, 1, "it counts rows")
        yield from at_least(f"{prefix}.max_prompt_len", data.max_prompt_len, 1, "it counts tokens")
        if "{prompt}" not in data.prompt_template:
            yield Finding(
                f"{prefix}.prompt_template",
                data.prompt_template,
                "text with {prompt}",
                "otherwise every prompt is the same",
                f"{prefix}.prompt_template='{{prompt}}'",
            )
        yield from _pattern(f"{prefix}.label_pattern", data.label_pattern, groups=1)


@rule("data.file", "data.path", "eval.sets", scope=Scope.files)
def file(config: RunConfig) -> Iterator[Finding]:
    """Dataset files exist and are not empty."""
    for prefix, data in datasets_of(config):
        if data.kind is not DataKind.file or data.path is None:
            continue
        path = Path(data.path).expanduser()
        if not path.is_file():
            yield Finding(
                f"{prefix}.path",
                data.path,
                "an existing file",
                "prompts are read from it",
                f"{prefix}.path=FILE (or paths.data_dir=FOLDER)",
            )
        elif path.stat().st_size == 0:
            yield Finding(f"{prefix}.path", data.path, "a file with rows", "it is empty", f"{prefix}.path=FILE")


@rule("reward.kind", "reward", "data.label_key")
def reward_kind(config: RunConfig) -> Iterator[Finding]:
    """A reward has what it scores with."""
    for prefix, reward, data in rewards_of(config):
        if reward.kind is RewardKind.custom and not re.fullmatch(r"[\w.]+:\w+", reward.path or ""):
            yield Finding(
                f"{prefix}.path",
                reward.path,
                "package.module:function",
                "kind=custom calls it",
                f"{prefix}.path=my_package.rewards:score",
            )
        if reward.kind is RewardKind.reasoning_gym and data.kind is not DataKind.reasoning_gym:
            yield Finding(
                f"{prefix}.kind",
                "reasoning_gym",
                "exact_match, math or custom for this data",
                "only reasoning-gym tasks bring their scorer",
                f"{prefix}.kind=exact_match",
            )
        needs_label = reward.kind in (RewardKind.exact_match, RewardKind.math)
        if needs_label and data.kind is DataKind.file and not data.label_key:
            yield Finding(
                "data.label_key",
                "null",
                "the column of the reference answer",
                f"kind={reward.kind.value} needs it",
                "data.label_key=label",
            )
        if reward.format_weight != 0 and reward.format_pattern is None:
            yield Finding(
                f"{prefix}.format_pattern",
                "null",
                "a regular expression",
                "format_weight scores a match with it",
                f"{prefix}.format_weight=0",
            )
        yield from _pattern(f"{prefix}.format_pattern", reward.format_pattern, groups=0)
        yield from at_least(f"{prefix}.num_workers", reward.num_workers, 1, "someone scores")
        if not 0 < reward.timeout_seconds < float("inf"):
            yield Finding(
                f"{prefix}.timeout_seconds",
                reward.timeout_seconds,
                "above 0 and finite",
                "a wait must end",
                f"{prefix}.timeout_seconds=10",
            )


def _pattern(path: str, pattern: str | None, *, groups: int) -> Iterator[Finding]:
    if pattern is None:
        return
    try:
        found = re.compile(pattern).groups
    except re.error as error:
        yield Finding(path, pattern, "a regular expression", str(error), f"{path}=null")
        return
    if found < groups:
        yield Finding(path, pattern, f"at least {groups} group", "the group is the answer", f"{path}='({pattern})'")
