from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from relax.config.schema import ArchConfig, DType, ModelConfig, ModelFamily, ModelInit
from relax.data.model_folder import materialize_model
from relax.rollout.embedded import EmbeddedEngine
from relax.rollout.protocol import GenerateRequest, RolloutEngine, SamplingParams

Requests = Callable[..., list[GenerateRequest]]


def teacher_forced(model: PreTrainedModel, ids: list[int], temperature: float) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("max_batch_sequences", [1, 3, 7, 64])
def test_tokens_do_not_depend_on_batch_or_order(
    model: PreTrainedModel, make_requests: Requests, max_batch_sequences: int
) -> None:
    requests = make_requests(40, max_response_len=12)
    expected = EmbeddedEngine(model, stop_ids=frozenset({2}), pad_id=0).generate(requests)
    engine = EmbeddedEngine(model, stop_ids=frozenset({2}), pad_id=0, max_batch_sequences=max_batch_sequences)
    order = np.random.default_rng(1).permutation(len(requests))
    results = engine.generate([requests[i] for i in order])
    for position, i in enumerate(order):
        assert results[position].token_ids == expected[i].token_ids
        assert np.allclose(results[position].log_probs, expected[i].log_probs, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("family", list(ModelFamily))
def test_log_probs_equal_a_teacher_forced_forward(
    family: ModelFamily, temperature: float, make_requests: Requests, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = tiny_model(family=family)
    engine = EmbeddedEngine(model, stop_ids=frozenset({2}), pad_id=0)
    requests = make_requests(24, max_response_len=9, temperature=temperature)
    results = engine.generate(requests)
    sequences = [r.prompt_token_ids + x.token_ids for r, x in zip(requests, results, strict=True)]
    scores = engine.score(sequences, temperature=temperature)
    for request, result, sequence, scored in zip(requests, results, sequences, scores, strict=True):
        expected = teacher_forced(model, sequence, temperature)
        start = len(request.prompt_token_ids) - 1
        assert torch.allclose(torch.tensor(result.log_probs), expected[start:], atol=1e-5)
        assert torch.allclose(torch.tensor(scored), expected, atol=1e-5)


def test_top_p_does_not_renormalise_log_probs(
    model: PreTrainedModel, engine: EmbeddedEngine, make_requests: Requests
) -> None:
    requests = make_requests(12, top_p=0.5, top_k=4, temperature=0.8)
    for request, result in zip(requests, engine.generate(requests), strict=True):
        expected = teacher_forced(model, request.prompt_token_ids + result.token_ids, 0.8)
        assert torch.allclose(torch.tensor(result.log_probs), expected[len(request.prompt_token_ids) - 1 :], atol=1e-5)


def test_greedy_equals_hf_generate_and_reports_log_probs_at_temperature_1(
    model: PreTrainedModel, engine: EmbeddedEngine, make_requests: Requests
) -> None:
    requests = make_requests(12, max_response_len=10, temperature=0.0)
    for request, result in zip(requests, engine.generate(requests), strict=True):
        prompt = torch.tensor([request.prompt_token_ids])
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=10,
            eos_token_id=2,
            pad_token_id=0,
        )
        assert result.token_ids == output[0, prompt.shape[1] :].tolist()
        expected = teacher_forced(model, request.prompt_token_ids + result.token_ids, 1.0)
        assert torch.allclose(torch.tensor(result.log_probs), expected[prompt.shape[1] - 1 :], atol=1e-5)


def test_stop_and_truncation_are_marked(model: PreTrainedModel, make_requests: Requests) -> None:
    engine = EmbeddedEngine(model, stop_ids=frozenset({2, 5, 9, 17}), pad_id=0)
    results = engine.generate(make_requests(60, max_response_len=8))
    assert {r.finish_reason for r in results} == {"stop", "length"}
    for result in results:
        stopped = result.token_ids[-1] in engine.stop_ids
        assert result.finish_reason == ("stop" if stopped else "length")
        assert not set(result.token_ids[:-1]) & engine.stop_ids
        assert stopped or len(result.token_ids) == 8
        assert len(result.log_probs) == len(result.token_ids)


def test_requests_with_different_sampling_share_a_call(engine: EmbeddedEngine, make_requests: Requests) -> None:
    mixed = [
        *make_requests(6, temperature=0.0),
        *make_requests(6, temperature=1.3, max_response_len=3),
        *make_requests(6, temperature=1.3, max_response_len=9),
    ]
    apart = [engine.generate([request])[0].token_ids for request in mixed]
    assert [result.token_ids for result in engine.generate(mixed)] == apart
    assert all(len(ids) <= request.sampling.max_response_len for ids, request in zip(apart, mixed, strict=True))


def test_no_requests_give_no_results(engine: EmbeddedEngine) -> None:
    assert engine.generate([]) == []
    assert engine.score([], temperature=1.0) == []


@pytest.mark.parametrize(
    ("prompt", "sampling", "said"),
    [
        ([3, 32], {}, r"request 1: the prompt holds token id 32; the model has ids 0 … 31"),
        ([-1], {}, "token id -1"),
        ([], {}, "request 1: the prompt is empty"),
        ([3] * 60, {}, r"prompt of 60 tokens \+ max_response_len=5 = 65 exceeds .*=64"),
        ([3], {"temperature": -0.1}, r"rollout\.temperature=-0\.1"),
        ([3], {"temperature": float("nan")}, "temperature=nan"),
        ([3], {"top_p": 0.0}, r"rollout\.top_p=0\.0"),
        ([3], {"top_k": 0}, r"rollout\.top_k=0"),
        ([3], {"max_response_len": 0}, r"rollout\.max_response_len=0"),
    ],
)
def test_bad_requests_are_refused_before_any_forward(
    engine: EmbeddedEngine,
    model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    prompt: list[int],
    sampling: dict,
    said: str,
) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a forward ran")

    monkeypatch.setattr(model, "forward", never)
    good = GenerateRequest([3], 0, SamplingParams(5))
    with pytest.raises(ValueError, match=said):
        engine.generate([good, GenerateRequest(prompt, 0, SamplingParams(**{"max_response_len": 5, **sampling}))])


@pytest.mark.parametrize(("sequence", "said"), [([], "empty"), ([99], "token id 99"), ([3] * 65, "65 tokens")])
def test_bad_sequences_are_refused(engine: EmbeddedEngine, sequence: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine.score([[3, 4], sequence], temperature=1.0)


def test_pause_refuses_work_until_resume_and_versions_are_stamped(
    engine: EmbeddedEngine, make_requests: Requests
) -> None:
    requests = make_requests(2)
    assert engine.generate(requests)[0].weight_version == 0
    engine.pause()
    engine.pause()
    assert engine.health().paused
    for work in (lambda: engine.generate(requests), lambda: engine.score([[3, 4]], temperature=1.0)):
        with pytest.raises(RuntimeError, match="paused"):
            work()
    engine.resume(version=3)
    assert engine.version() == 3
    assert {r.weight_version for r in engine.generate(requests)} == {3}
    health = engine.health()
    assert (health.alive, health.version, health.paused, health.detail["requests"]) == (True, 3, False, 4.0)
    with pytest.raises(ValueError, match="goes back"):
        engine.resume(version=2)


def test_pause_waits_for_running_generation(
    engine: EmbeddedEngine, model: PreTrainedModel, make_requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, finished, forward = threading.Event(), [], model.forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        started.set()
        time.sleep(0.05)
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", slow)
    thread = threading.Thread(target=lambda: finished.extend(engine.generate(make_requests(2))))
    thread.start()
    assert started.wait(10)
    assert engine.health().detail["running"] == 1.0
    engine.pause()
    assert len(finished) == 2
    thread.join()


def test_from_folder_stops_at_every_known_eos(tmp_path: Path, make_requests: Requests) -> None:
    config = ModelConfig(init=ModelInit.random, arch=ArchConfig(), charset="0123456789>")
    folder = materialize_model(config, seed=0, folder=tmp_path / "m")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    engine: RolloutEngine = EmbeddedEngine.from_folder(folder, dtype=DType.bf16, version=5)
    assert isinstance(engine, EmbeddedEngine)
    assert engine.stop_ids == {2, 7}
    assert {r.weight_version for r in engine.generate(make_requests(4))} == {5}
