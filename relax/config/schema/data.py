"""Prompts and rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relax.config.schema.enums import DataKind, RewardKind


@dataclass
class DataConfig:
    """Where prompts come from and how they are rendered."""

    kind: DataKind = DataKind.task
    """`file` (JSONL, JSON or Parquet), `task` (a procedural task of Relax) or `reasoning_gym` (any of its tasks)."""
    path: str | None = None
    """File of prompts, for `kind=file`."""
    revision: str | None = None
    """Revision of the dataset, recorded in the manifest."""
    task: str | None = None
    """Name of the procedural task, for `kind=task` or `kind=reasoning_gym`."""
    task_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the procedural task, by its own names."""
    size: int = 10_000
    """Rows a procedural task draws (an epoch)."""
    max_rows: int | None = None
    """Use the first so many rows of a file; all when absent."""
    seed: int = 0
    """Seed of a procedural task's rows; training and evaluation sets use different ones."""
    prompt_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages."""
    label_key: str | None = "label"
    """Column with the reference answer; absent for unlabelled prompts."""
    metadata_keys: list[str] = field(default_factory=list)
    """Further columns kept with each sample (for custom rewards and feedback)."""
    label_pattern: str | None = None
    """Regular expression whose first group is the answer inside the label column (GSM8K: `#### (.+)$`)."""
    system_prompt: str | None = None
    """System message put before the prompt."""
    prompt_template: str = "{prompt}"
    """Text around the prompt; `{prompt}` is replaced."""
    chat_template: bool = False
    """Render with the tokenizer's chat template (and its generation header)."""
    max_prompt_len: int | None = None
    """Drop prompts of more tokens, and count them."""
    shuffle: bool = True
    """A new seeded order each epoch; off keeps the file's order."""
    skip_bad_rows: bool = False
    """Skip and count malformed rows instead of failing at the first."""


@dataclass
class RewardConfig:
    """How a response is scored."""

    kind: RewardKind = RewardKind.exact_match
    """`exact_match`, `math` (math-verify), `reasoning_gym` (the task's own scorer) or `custom`."""
    path: str | None = None
    """Import path `package.module:function` of a custom reward `f(sample) -> float | dict[str, float]`."""
    require_stop: bool = True
    """A response that did not stop by itself (truncated) scores 0 on the answer part."""
    answer_weight: float = 1.0
    """Weight of the answer part."""
    format_weight: float = 0.0
    """Weight of the format part: 1 when the response matches `format_pattern`, else 0."""
    format_pattern: str | None = None
    """Regular expression (searched, dot matches newline) of a well-formed response."""
    timeout_seconds: float = 10.0
    """Longest time for one response; beyond it the answer part is 0 and counted."""
    num_workers: int = 4
    """Responses scored at the same time."""
