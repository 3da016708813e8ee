"""Rows of a `DataConfig`: JSONL, JSON or Parquet files, procedural tasks, reasoning-gym.

A malformed row is an error that names file and line, or is skipped and counted with `data.skip_bad_rows`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax.config.schema.data import DataConfig
from relax.config.schema.enums import DataKind
from relax.data.errors import DataError, nearest
from relax.data.sample import Messages
from relax.data.tasks import PromptRow, reasoning_gym_rows, task_rows

MAX_BAD_MESSAGES = 20
"""Messages of skipped rows kept for the report; all are counted."""


@dataclass
class RowReport:
    """What was read. `num_read` counts good and bad rows."""

    num_read: int = 0
    num_bad: int = 0
    bad_messages: list[str] = field(default_factory=list)


class _BadRow(Exception):
    """A row that cannot be used, and why."""


def load_rows(config: DataConfig) -> tuple[list[PromptRow], RowReport]:
    """Rows of `config`, in file order, and the counts.

    Raises:
        DataError: absent, empty or unreadable file, a malformed row (unless `skip_bad_rows`), unknown task.
    """
    if config.kind is DataKind.file:
        return _load_file(config)
    load = task_rows if config.kind is DataKind.task else reasoning_gym_rows
    rows = load(config.task, size=config.size, seed=config.seed, task_args=config.task_args)
    return rows, RowReport(num_read=len(rows))


def _load_file(config: DataConfig) -> tuple[list[PromptRow], RowReport]:
    path = _existing_file(config.path)
    pattern = _label_pattern(config)
    rows: list[PromptRow] = []
    report = RowReport()
    for where, record in _records(path):
        if config.max_rows is not None and len(rows) == config.max_rows:
            break
        report.num_read += 1
        try:
            if isinstance(record, _BadRow):
                raise record
            rows.append(_prompt_row(record, config, pattern))
        except _BadRow as bad:
            message = f"{path}, {where}: {bad}"
            if not config.skip_bad_rows:
                raise DataError(f"{message} (data.skip_bad_rows=true skips and counts such rows)") from bad
            report.num_bad += 1
            if len(report.bad_messages) < MAX_BAD_MESSAGES:
                report.bad_messages.append(message)
    if report.num_read == 0:
        raise DataError(f"data.path={config.path!r} holds no rows; it must hold at least one")
    return rows, report


def _existing_file(path: str | None) -> Path:
    if path is None:
        raise DataError("data.kind=file needs data.path (a .jsonl, .json or .parquet file)")
    file = Path(path).expanduser()
    if not file.is_file():
        near = sorted(p.name for p in file.parent.glob("*")) if file.parent.is_dir() else []
        beside = f"; beside it: {', '.join(near[:8])}" if near else ""
        raise DataError(
            f"data.path={path!r} is not a file{beside}; set data.path (or paths.data_dir) to an existing one"
        )
    if file.suffix not in (".jsonl", ".json", ".parquet"):
        raise DataError(f"data.path={path!r} ends in {file.suffix!r}; it must be .jsonl, .json or .parquet")
    if file.stat().st_size == 0:
        raise DataError(f"data.path={path!r} is empty; it must hold at least one row")
    return file


def _label_pattern(config: DataConfig) -> re.Pattern[str] | None:
    if config.label_pattern is None:
        return None
    if config.label_key is None:
        raise DataError(f"data.label_pattern={config.label_pattern!r} needs data.label_key (the column it applies to)")
    try:
        pattern = re.compile(config.label_pattern)
    except re.error as error:
        raise DataError(f"data.label_pattern={config.label_pattern!r} is not a regular expression: {error}") from error
    if pattern.groups < 1:
        raise DataError(f"data.label_pattern={config.label_pattern!r} has no group; put the answer in (…)")
    return pattern


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """(`line N` or `row N`, the record or a `_BadRow`) for each row of the file."""
    if path.suffix == ".parquet":
        yield from _parquet_records(path)
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from error
    # Files named .json often hold one object a line: what they hold decides, not the name.
    if path.suffix == ".json" and text.lstrip().startswith("["):
        yield from _json_array_records(path, text)
    else:
        yield from _json_line_records(text)


def _json_line_records(text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except json.JSONDecodeError as error:
            yield f"line {number}", _BadRow(f"not JSON: {error.msg} at column {error.colno}")


def _json_array_records(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    decoder = json.JSONDecoder()
    blank = re.compile(r"\s*")

    def skip(position: int) -> int:
        match = blank.match(text, position)
        return position if match is None else match.end()

    position, line, counted = skip(text.index("[") + 1), 1, 0
    while text[position : position + 1] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            record, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:  # what follows cannot be told apart: no row of it can be skipped
            raise DataError(f"{path}, line {error.lineno}: not JSON: {error.msg} at column {error.colno}") from error
        yield f"line {line}", record
        position = skip(position)
        if text[position : position + 1] == ",":
            position = skip(position + 1)
        elif text[position : position + 1] != "]":
            raise DataError(f"{path}, line {line}: after this row ',' or ']' is missing")


def _parquet_records(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"data.path={str(path)!r} is not a Parquet file: {error}") from error
    number = 0
    for batch in table.iter_batches():
        for record in batch.to_pylist():
            number += 1
            yield f"row {number}", record


def _prompt_row(record: Any, config: DataConfig, pattern: re.Pattern[str] | None) -> PromptRow:
    if not isinstance(record, dict):
        raise _BadRow(f"the row is {type(record).__name__}, not an object")
    prompt = _prompt(_column(record, config.prompt_key, "data.prompt_key"), config.prompt_key)
    label = None
    if config.label_key is not None:
        label = _label(_column(record, config.label_key, "data.label_key"), config.label_key)
        if pattern is not None:
            match = pattern.search(label)
            if match is None or match.group(1) is None:
                raise _BadRow(f"data.label_pattern={pattern.pattern!r} does not match {_short(label)}")
            label = match.group(1).strip()
    metadata = {key: _column(record, key, "data.metadata_keys") for key in config.metadata_keys}
    return PromptRow(prompt, label, metadata)


def _column(record: dict[str, Any], key: str, option: str) -> Any:
    if key not in record:
        raise _BadRow(f"no column {key!r} ({option}); {nearest(key, record)}")
    return record[key]


def _prompt(value: Any, key: str) -> str | Messages:
    if isinstance(value, str):
        if not value.strip():
            raise _BadRow(f"column {key!r} is blank; a prompt needs text")
        return value
    if isinstance(value, list) and value and all(_is_message(m) for m in value):
        return [{"role": m["role"], "content": m["content"]} for m in value]
    raise _BadRow(
        f"column {key!r} holds {_short(value)}; it must be text or a list of messages with text 'role' and 'content'"
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _label(value: Any, key: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise _BadRow(f"column {key!r} holds {_short(value)}; a label must be text or a number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else "…" + text[-79:]
