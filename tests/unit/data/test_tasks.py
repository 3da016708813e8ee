from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.data.errors import DataError
from relax.data.tasks import PromptRow, reasoning_gym_rows, register_task, task_names, task_rows


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 20), st.integers(1, 20))
def test_row_depends_on_seed_and_position_alone(seed: int, length: int, size: int, more: int) -> None:
    rows = task_rows("reverse", size=size, seed=seed, task_args={"length": length})
    assert rows == task_rows("reverse", size=size + more, seed=seed, task_args={"length": length})[:size]
    for row in rows:
        assert isinstance(row.prompt, str)
        assert row.prompt == (row.label or "")[::-1] + ">"
        assert len(row.prompt) == length + 1


def test_seeds_give_different_rows() -> None:
    a, b = (task_rows("reverse", size=50, seed=seed, task_args={}) for seed in (0, 1))
    assert sum(x == y for x, y in zip(a, b, strict=True)) < 3
    assert len({row.label for row in a}) > 45


@pytest.mark.parametrize(
    ("task", "arguments", "size", "said"),
    [
        ("revrese", {}, 1, "did you mean 'reverse'"),
        (None, {}, 1, r"data\.task=None"),
        ("reverse", {"lenght": 3}, 1, r"data\.task_args\.lenght .*did you mean 'length'"),
        ("reverse", {"length": 0}, 1, "length=0"),
        ("reverse", {"length": "4"}, 1, "length='4'"),
        ("reverse", {}, 0, r"data\.size=0"),
    ],
)
def test_bad_task_is_refused(task: Any, arguments: dict, size: int, said: str) -> None:
    with pytest.raises(DataError, match=said):
        task_rows(task, size=size, seed=0, task_args=arguments)


def test_a_task_is_added_by_a_decorator_and_once_only() -> None:
    @register_task("test_constant")
    def constant(rng: Any, *, word: str = "A") -> PromptRow:
        return PromptRow(word, word)

    assert "test_constant" in task_names()
    assert task_rows("test_constant", size=2, seed=0, task_args={"word": "B"}) == [PromptRow("B", "B")] * 2
    with pytest.raises(ValueError, match="registered already"):
        register_task("test_constant")(constant)


def test_reasoning_gym_rows_keep_their_entry() -> None:
    pytest.importorskip("reasoning_gym")
    arguments = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    rows = reasoning_gym_rows("chain_sum", size=3, seed=7, task_args=arguments)
    assert rows == reasoning_gym_rows("chain_sum", size=3, seed=7, task_args=arguments)
    origin = rows[0].metadata["reasoning_gym"]
    assert origin["task"] == "chain_sum"
    assert origin["entry"]["answer"] == rows[0].label
    with pytest.raises(DataError, match="did you mean 'chain_sum'"):
        reasoning_gym_rows("chain_sums", size=3, seed=7, task_args={})
    for bad in ({"foo": 1}, {"min_terms": -1}):
        with pytest.raises(DataError, match=r"refuses data\.task_args"):
            reasoning_gym_rows("chain_sum", size=3, seed=7, task_args=bad)


def test_absent_reasoning_gym_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"pip install 'relax-rl\[reasoning-gym\]'"):
        reasoning_gym_rows("chain_sum", size=1, seed=0, task_args={})
