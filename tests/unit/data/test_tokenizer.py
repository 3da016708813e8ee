from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.data.errors import DataError
from relax.data.tokenizer import build_char_tokenizer, load_tokenizer

CHARSET = "0123456789+-=> \nA"
TOKENIZER = build_char_tokenizer(CHARSET)


def test_ids_follow_the_charset_after_three_special_tokens() -> None:
    assert (TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id) == (0, 1, 2)
    assert TOKENIZER("0>")["input_ids"] == [1, 3, 3 + CHARSET.index(">")]
    assert TOKENIZER("0>", add_special_tokens=False)["input_ids"] == [3, 3 + CHARSET.index(">")]


@given(st.text(alphabet=CHARSET, min_size=1, max_size=30))
def test_decode_inverts_encode(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_auto_tokenizer_loads_what_was_saved(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(str(tmp_path))
    again = load_tokenizer(tmp_path)
    for text in ("12>", "A \n9"):
        assert again(text)["input_ids"] == TOKENIZER(text)["input_ids"]
        assert again.decode(again(text, add_special_tokens=False)["input_ids"]) == text
    assert (again.pad_token_id, again.bos_token_id, again.eos_token_id, len(again)) == (0, 1, 2, len(TOKENIZER))


def test_unknown_character_is_an_error_not_a_drop() -> None:
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER("1é2")


@pytest.mark.parametrize(("charset", "said"), [("0120", r"\['0'\] more than once"), ("", "empty")])
def test_bad_charset_is_refused(charset: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_char_tokenizer(charset)


@pytest.mark.parametrize("content", [None, {}, {"tokenizer.json": "{"}])
def test_unreadable_tokenizer_is_a_clear_error(tmp_path: Path, content: Any) -> None:
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    with pytest.raises(DataError, match=r"model folder|cannot be read"):
        load_tokenizer(folder)
