"""docs/ say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax.config.compose import known_keys
from relax.config.docs import PAGES, config_page, keys_of, main
from relax.config.rules import RULES
from relax.config.schema import RunConfig
from relax.config.toggles import TOGGLES
from tests.helpers.runs import ROOT


def test_the_committed_docs_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--check", "--output", str(ROOT / "docs")])
    assert status == 0, f"run: python -m relax.config.docs\n{capsys.readouterr().out[:2000]}"


def test_a_stale_page_is_shown_and_writing_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path)]) == 0
    page = tmp_path / "rules.md"
    page.write_text(page.read_text().replace("model.origin", "model.orijin"))
    assert main(["--check", "--output", str(tmp_path)]) == 1
    assert "+| `model.origin`" in capsys.readouterr().out
    assert main(["--output", str(tmp_path)]) == 0
    assert main(["--check", "--output", str(tmp_path)]) == 0


def test_every_field_has_a_docstring_and_every_key_a_row() -> None:
    assert [key.path for key in keys_of(RunConfig()) if not key.text] == []
    page = config_page()
    leaves = [key for key in known_keys() if not any(other.startswith(f"{key}.") for other in known_keys())]
    assert [key for key in leaves if f"`{key}`" not in page] == []


def test_every_rule_and_toggle_has_a_sentence() -> None:
    pages = {name: build() for name, build in PAGES.items()}
    assert [rule_id for rule_id in RULES if f"`{rule_id}`" not in pages["rules.md"]] == []
    assert [rule.id for rule in RULES.values() if not rule.function.__doc__] == []
    assert [name for name in TOGGLES if f"## {name}" not in pages["perf.md"]] == []
