from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relax.config.schema import DataConfig, DataKind
from relax.data.datasets import load_rows
from relax.data.errors import DataError

GOOD = {"prompt": "1+1=", "label": "2"}
GSM8K = Path(__file__).parents[4] / "shared/data/gsm8k/train.jsonl"


def config(path: str | None, **fields: Any) -> DataConfig:
    return DataConfig(kind=DataKind.file, path=path, **fields)


def test_jsonl_rows_in_order_with_labels_and_metadata(write_rows: Callable[..., str]) -> None:
    path = write_rows({**GOOD, "id": 7}, "", {"prompt": [{"role": "user", "content": "x"}], "label": 3, "id": 8})
    rows, report = load_rows(config(path, metadata_keys=["id"]))
    assert [row.prompt for row in rows] == ["1+1=", [{"role": "user", "content": "x"}]]
    assert [row.label for row in rows] == ["2", "3"]
    assert [row.metadata for row in rows] == [{"id": 7}, {"id": 8}]
    assert (report.num_read, report.num_bad) == (2, 0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"prompt": "x", ', "line 2: not JSON"),
        ("[1]", "line 2: the row is list"),
        ({"promt": "x", "label": "1"}, r"line 2: no column 'prompt' \(data.prompt_key\); did you mean 'promt'"),
        ({"prompt": "x"}, r"line 2: no column 'label' \(data.label_key\)"),
        ({"prompt": 5, "label": "1"}, "line 2: column 'prompt' holds 5"),
        ({"prompt": "  ", "label": "1"}, "line 2: column 'prompt' is blank"),
        ({"prompt": [], "label": "1"}, "line 2: column 'prompt' holds"),
        ({"prompt": [{"role": "user"}], "label": "1"}, "line 2: column 'prompt' holds"),
        ({"prompt": "x", "label": None}, "line 2: column 'label' holds None"),
        ({"prompt": "x", "label": True}, "line 2: column 'label' holds True"),
    ],
)
def test_malformed_row_names_file_and_line_or_is_counted(row: Any, said: str, write_rows: Callable[..., str]) -> None:
    path = write_rows(GOOD, row, GOOD)
    with pytest.raises(DataError, match=said) as caught:
        load_rows(config(path))
    assert path in str(caught.value)
    rows, report = load_rows(config(path, skip_bad_rows=True))
    assert (len(rows), report.num_read, report.num_bad) == (2, 3, 1)
    assert path in report.bad_messages[0]


def test_label_pattern_takes_the_first_group_or_names_the_line(write_rows: Callable[..., str]) -> None:
    path = write_rows({"prompt": "q", "label": "so\n#### 1,234 "}, {"prompt": "q", "label": "none"})
    rows, _ = load_rows(config(path, label_pattern="#### (.+)$", skip_bad_rows=True))
    assert [row.label for row in rows] == ["1,234"]
    with pytest.raises(DataError, match=r"line 2: data\.label_pattern='#### \(\.\+\)\$' does not match 'none'"):
        load_rows(config(path, label_pattern="#### (.+)$"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"label_pattern": "("}, "not a regular expression"),
        ({"label_pattern": "x"}, "has no group"),
        ({"label_pattern": "(x)", "label_key": None}, r"needs data\.label_key"),
    ],
)
def test_bad_label_pattern_is_refused(fields: dict, said: str, write_rows: Callable[..., str]) -> None:
    with pytest.raises(DataError, match=said):
        load_rows(config(write_rows(GOOD), **fields))


def test_json_array_and_json_lines_under_the_name_json(tmp_path: Path, write_rows: Callable[..., str]) -> None:
    array = tmp_path / "array.json"
    array.write_text(json.dumps([GOOD, {"prompt": "p, ]", "label": "1"}], indent=2))
    assert [row.prompt for row in load_rows(config(str(array)))[0]] == ["1+1=", "p, ]"]
    assert len(load_rows(config(write_rows(GOOD, GOOD, name="lines.json")))[0]) == 2
    array.write_text('[\n{"prompt": "a", "label": "1"},\n{"prompt": "b"}\n]')
    with pytest.raises(DataError, match=r"array\.json, line 3: no column 'label'"):
        load_rows(config(str(array)))
    array.write_text('[\n{"prompt": "a", "label": "1"}\n{"prompt": "b"}]')
    with pytest.raises(DataError, match="line 2: after this row"):
        load_rows(config(str(array)))
    array.write_text('[\n{"prompt": "a" "label"')
    with pytest.raises(DataError, match="line 2: not JSON"):
        load_rows(config(str(array)))


def test_parquet_rows_and_their_numbers(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "label": ["1", None]}), path)
    with pytest.raises(DataError, match=r"row 2: column 'label' holds None"):
        load_rows(config(str(path)))
    assert [row.prompt for row in load_rows(config(str(path), skip_bad_rows=True))[0]] == ["a"]
    path.write_bytes(b"not parquet")
    with pytest.raises(DataError, match="not a Parquet file"):
        load_rows(config(str(path)))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (None, None, r"needs data\.path"),
        ("absent.jsonl", None, r"data\.path='.*absent\.jsonl' is not a file"),
        ("rows.csv", b"a", "ends in '.csv'"),
        ("empty.jsonl", b"", "is empty"),
        ("blank.jsonl", b"\n\n", "holds no rows"),
        ("latin.jsonl", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_unusable_file_is_a_clear_error(name: str | None, content: bytes | None, said: str, tmp_path: Path) -> None:
    if name is not None and content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        load_rows(config(None if name is None else str(tmp_path / name)))


@pytest.mark.real_data
@pytest.mark.skipif(not GSM8K.is_file(), reason="shared/data/gsm8k is absent")
def test_gsm8k_needs_no_preparation() -> None:
    rows, report = load_rows(config(str(GSM8K), prompt_key="question", label_key="answer", label_pattern="#### (.+)$"))
    assert (len(rows), report.num_bad) == (7473, 0)
    assert rows[0].label == "72"


def test_max_rows_keeps_the_first_rows_and_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{i}", "label": "{i}"}}\n' for i in range(5)) + "{broken\n")
    rows, report = load_rows(DataConfig(kind=DataKind.file, path=str(path), max_rows=3))
    assert [row.prompt for row in rows] == ["0", "1", "2"]
    assert report.num_read == 3
