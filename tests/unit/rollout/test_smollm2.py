"""The real SmolLM2-135M, where `python -m relax.data.prepare smollm2` has written it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from relax.config.schema import DataConfig, DataKind, DType
from relax.data.source import PromptSource
from relax.data.tokenizer import load_tokenizer
from relax.rollout.embedded import EmbeddedEngine
from relax.rollout.groups import attach_results, build_requests, make_samples
from relax.rollout.protocol import SamplingParams

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "models/SmolLM2-135M-Instruct"
GSM8K = ROOT.parent / "shared/data/gsm8k/train.jsonl"


@pytest.mark.real_data
@pytest.mark.skipif(not (MODEL.is_dir() and GSM8K.is_file()), reason="SmolLM2 folder or GSM8K is absent")
def test_log_probs_of_sampled_answers_equal_a_scoring_pass() -> None:
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(MODEL)
    config = DataConfig(
        kind=DataKind.file,
        path=str(GSM8K),
        prompt_key="question",
        label_key="answer",
        label_pattern="#### (.+)$",
        chat_template=True,
    )
    samples = make_samples(
        PromptSource(config, tokenizer, seed=0).batch(0, 2), rollout_id=0, num_samples=2, first_index=0, first_group=0
    )
    engine = EmbeddedEngine.from_folder(MODEL, dtype=DType.fp32)
    requests = build_requests(samples, seed=0, sampling=SamplingParams(8, 0.7))
    attach_results(samples, engine.generate(requests), tokenizer)
    scores = engine.score([s.prompt_token_ids + s.response_token_ids for s in samples], temperature=0.7)
    for sample, score in zip(samples, scores, strict=True):
        sample.validate()
        written = torch.tensor(score[len(sample.prompt_token_ids) - 1 :])
        assert torch.allclose(torch.tensor(sample.rollout_log_probs), written, atol=2e-4)
    assert any(sample.response.strip() for sample in samples)
