from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.config.schema import DataConfig, DataKind
from relax.data.errors import DataError
from relax.data.rendering import PromptRenderer
from relax.data.source import PromptSource
from relax.data.tokenizer import build_char_tokenizer

TOKENIZER = build_char_tokenizer("0123456789>")
CHAT = build_char_tokenizer("0123456789> abcdefghijklmnopqrstuvwxyz:|\n")
CHAT.chat_template = (
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '|' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def source(size: int, *, seed: int = 0, **fields: Any) -> PromptSource:
    return PromptSource(DataConfig(task="reverse", size=size, **fields), TOKENIZER, seed=seed)


@settings(max_examples=40)
@given(size=st.integers(1, 30), batch_size=st.integers(1, 40), seed=st.integers(0, 9), shuffle=st.booleans())
def test_every_prompt_comes_once_an_epoch(size: int, batch_size: int, seed: int, shuffle: bool) -> None:
    prompts = source(size, seed=seed, shuffle=shuffle)
    num_rollouts = -(-3 * size // batch_size)
    rows = [p.row for r in range(num_rollouts) for p in prompts.batch(r, batch_size)]
    for epoch in range(3):
        seen = rows[epoch * size : (epoch + 1) * size]
        assert sorted(seen) == list(range(size))
        if not shuffle:
            assert seen == list(range(size))


@settings(max_examples=20)
@given(order=st.permutations(range(12)), batch_size=st.integers(1, 9))
def test_batch_is_a_pure_function_of_the_rollout_id(order: list[int], batch_size: int) -> None:
    expected = [source(7).batch(r, batch_size) for r in range(12)]  # a fresh source each time: no state
    prompts = source(7)
    assert {r: prompts.batch(r, batch_size) for r in order} == dict(enumerate(expected))


def test_epochs_and_seeds_are_ordered_differently() -> None:
    prompts = source(200)
    assert list(prompts.order(0)) != list(prompts.order(1))
    assert list(prompts.order(0)) != list(source(200, seed=1).order(0))
    assert list(prompts.order(0)) == list(source(200).order(0))


@pytest.mark.parametrize(("rollout_id", "batch_size"), [(-1, 4), (0, 0)])
def test_impossible_batches_are_refused(rollout_id: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="rollout_id"):
        source(5).batch(rollout_id, batch_size)


def test_prompts_are_tokenized_with_bos_in_front() -> None:
    prompt = source(1)[0]
    assert prompt.token_ids == [1, *TOKENIZER(prompt.prompt, add_special_tokens=False)["input_ids"]]
    assert len(prompt.token_ids) == 6


def test_long_and_bad_prompts_are_counted(write_rows: Callable[..., str]) -> None:
    path = write_rows(*({"prompt": "1" * n, "label": "1"} for n in (1, 5, 3, 9)), "{")
    config = DataConfig(kind=DataKind.file, path=path, max_prompt_len=4, skip_bad_rows=True)
    report = PromptSource(config, TOKENIZER, seed=0).report
    assert (report.num_read, report.num_bad, report.num_too_long, report.num_kept) == (5, 1, 2, 2)
    assert report.max_prompt_tokens == 4
    config.max_prompt_len = 1
    with pytest.raises(DataError, match=r"no prompt is left.*4 too long \(the shortest has 2 tokens"):
        PromptSource(config, TOKENIZER, seed=0)


def test_character_outside_the_charset_names_the_option(write_rows: Callable[..., str]) -> None:
    path = write_rows({"prompt": "1x", "label": "1"})
    with pytest.raises(DataError, match=r"refuses the prompt '1x'.*model\.charset"):
        PromptSource(DataConfig(kind=DataKind.file, path=path), TOKENIZER, seed=0)


def chat(**fields: Any) -> PromptRenderer:
    return PromptRenderer(DataConfig(chat_template=True, **fields), CHAT)


def test_chat_template_wraps_template_and_system_prompt_with_the_generation_header() -> None:
    renderer = chat(prompt_template="add {prompt}", system_prompt="be brief")
    prompt = renderer.apply_templates("1 2")
    assert prompt == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "add 1 2"}]
    ids = renderer.encode(prompt)
    assert CHAT.decode(ids) == "system:be brief|user:add 1 2|assistant:"
    assert CHAT.bos_token_id not in ids


def test_prompt_template_goes_into_the_last_user_message_and_leaves_the_row_alone() -> None:
    row = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    prompt = chat(prompt_template="{prompt}>").apply_templates(row)
    assert [m["content"] for m in prompt] == ["a", "b", "c>"]  # type: ignore[index]
    assert row[2]["content"] == "c"


def test_plain_text_gets_the_system_prompt_in_front() -> None:
    renderer = PromptRenderer(DataConfig(system_prompt="s", prompt_template="q{prompt}"), CHAT)
    assert renderer.apply_templates("1") == "s\n\nq1"


def test_rendering_that_cannot_work_is_refused() -> None:
    with pytest.raises(DataError, match="no chat template"):
        PromptRenderer(DataConfig(chat_template=True), TOKENIZER)
    with pytest.raises(DataError, match=r"lacks '\{prompt\}'"):
        PromptRenderer(DataConfig(prompt_template="x"), TOKENIZER)
    with pytest.raises(DataError, match=r"set data\.chat_template=true"):
        PromptRenderer(DataConfig(), CHAT).apply_templates([{"role": "user", "content": "x"}])
    with pytest.raises(DataError, match="without a message of role 'user'"):
        chat().apply_templates([{"role": "system", "content": "x"}])
    with pytest.raises(DataError, match="system message already"):
        chat(system_prompt="s").apply_templates([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])
