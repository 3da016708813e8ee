"""Small rows and a character tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relax.data.tokenizer import build_char_tokenizer


@pytest.fixture(scope="session")
def char_tokenizer() -> Any:
    return build_char_tokenizer("0123456789+-=>ABCDEFGH")


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., str]:
    """Write rows (or raw lines) as JSONL and return the path."""

    def write(*rows: Any, name: str = "rows.jsonl") -> str:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write
