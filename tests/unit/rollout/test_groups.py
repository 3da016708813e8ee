from __future__ import annotations

import dataclasses

import pytest

from relax.data.sample import Sample, SampleStatus
from relax.data.source import Prompt
from relax.data.tokenizer import build_char_tokenizer
from relax.rollout.groups import attach_results, build_requests, decode, make_samples
from relax.rollout.protocol import GenerateResult, SamplingParams

TOKENIZER = build_char_tokenizer("0123456789>")
PROMPTS = [Prompt(row, f"{row}>", [1, 3 + row, 13], str(row), {"row": row}) for row in range(3)]
RESULT = GenerateResult([4, 5, 2], [-0.1, -0.2, -0.3], "stop", weight_version=6)


def samples(num_samples: int = 2) -> list[Sample]:
    return make_samples(PROMPTS, rollout_id=4, num_samples=num_samples, first_index=24, first_group=12)


def test_samples_are_numbered_group_by_group() -> None:
    made = samples()
    assert [s.index for s in made] == list(range(24, 30))
    assert [s.group_index for s in made] == [12, 12, 13, 13, 14, 14]
    assert {s.rollout_id for s in made} == {4}
    made[0].metadata["x"] = 1
    assert "x" not in made[1].metadata
    assert "x" not in PROMPTS[0].metadata


def test_seeds_depend_on_run_seed_and_sample_index_alone() -> None:
    sampling = SamplingParams(5)
    seeds = [r.seed for r in build_requests(samples(), seed=0, sampling=sampling)]
    assert len(set(seeds)) == 6
    assert [r.seed for r in build_requests(samples()[::-1], seed=0, sampling=sampling)] == seeds[::-1]
    assert not set(seeds) & {r.seed for r in build_requests(samples(), seed=1, sampling=sampling)}


@pytest.mark.parametrize(
    ("reason", "status", "text"),
    [
        ("stop", SampleStatus.completed, "12"),
        ("length", SampleStatus.truncated, "12<eos>"),
        ("abort", SampleStatus.aborted, "12<eos>"),
    ],
)
def test_results_fill_the_sample(reason: str, status: SampleStatus, text: str) -> None:
    sample = samples()[0]
    attach_results([sample], [dataclasses.replace(RESULT, finish_reason=reason)], TOKENIZER)
    sample.validate()
    assert (sample.status, sample.response) == (status, text)
    assert sample.response_token_ids == [4, 5, 2]
    assert sample.loss_mask == [1, 1, 1]
    assert sample.weight_versions == [6, 6, 6]
    assert sample.rollout_log_probs == RESULT.log_probs


def test_stray_special_and_unknown_ids_stay_visible() -> None:
    assert decode(TOKENIZER, [4, 0, 5]) == "1<pad>2"
    assert decode(TOKENIZER, [31, 4, 30, 5]) == "\ufffd1\ufffd2"
    assert decode(TOKENIZER, []) == ""


def test_results_that_do_not_belong_are_refused() -> None:
    sample = samples()[0]
    with pytest.raises(ValueError, match="0 results for 1 samples"):
        attach_results([sample], [], TOKENIZER)
    with pytest.raises(ValueError, match="finish reason 'odd'"):
        attach_results([sample], [dataclasses.replace(RESULT, finish_reason="odd")], TOKENIZER)
    attach_results([sample], [RESULT], TOKENIZER)
    with pytest.raises(ValueError, match="completed already"):
        attach_results([sample], [RESULT], TOKENIZER)
