from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from relax.data.weights import WeightBucket
from relax.rollout.embedded import EmbeddedEngine
from relax.rollout.protocol import GenerateRequest
from relax.rollout.weight_loading import bucket_tensors


def bucket_of(tensors: dict[str, torch.Tensor]) -> WeightBucket:
    pieces = [t.contiguous().reshape(-1).view(torch.uint8).numpy() for t in tensors.values()]
    data = np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
    data.flags.writeable = False  # as Ray's shared memory gives it
    return WeightBucket(
        names=list(tensors),
        shapes=[tuple(t.shape) for t in tensors.values()],
        dtypes=[str(t.dtype).removeprefix("torch.") for t in tensors.values()],
        data=data,
    )


@pytest.fixture
def paused_engine(tiny_model: Callable[..., PreTrainedModel]) -> EmbeddedEngine:
    engine = EmbeddedEngine(tiny_model(num_layers=1), stop_ids=frozenset({2}), pad_id=0)
    engine.pause()
    return engine


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([torch.float32, torch.bfloat16]), st.lists(st.integers(0, 4), max_size=3)), max_size=6
    )
)
def test_bucket_views_give_back_what_was_packed(layout: list[tuple[torch.dtype, list[int]]]) -> None:
    tensors = {f"w{i}": torch.randn(shape).to(dtype) for i, (dtype, shape) in enumerate(layout)}
    bucket = bucket_of(tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        views = bucket_tensors(bucket)
    assert list(views) == list(tensors)
    total = sum(t.numel() for t in tensors.values())
    assert total == 0 or all(views[n].dtype == t.dtype and torch.equal(views[n], t) for n, t in tensors.items())


@pytest.mark.parametrize("tied_name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_updated_engine_generates_like_the_new_model(
    tied_name: str,
    make_requests: Callable[..., list[GenerateRequest]],
    paused_engine: EmbeddedEngine,
    tiny_model: Callable[..., PreTrainedModel],
) -> None:
    target = tiny_model(num_layers=1)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    expected = EmbeddedEngine(target, stop_ids=frozenset({2}), pad_id=0).generate(make_requests(12))
    weights = {n: p.data for n, p in target.named_parameters() if n != "model.embed_tokens.weight"}
    weights[tied_name] = target.model.embed_tokens.weight.data
    names = list(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in (names[:4], names[4:]):  # several buckets make one update
            paused_engine.update_weights(bucket_of({name: weights[name] for name in part}))
    paused_engine.resume(version=1)
    results = paused_engine.generate(make_requests(12))
    assert [r.token_ids for r in results] == [r.token_ids for r in expected]
    assert {r.weight_version for r in results} == {1}


EMBED = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"model.embed_token.weight": torch.zeros(32, 64)}, "no parameter 'model.embed_token.weight'; did you mean"),
        ({EMBED: torch.zeros(64, 32)}, r"shape \(64, 32\), the model's is \(32, 64\)"),
        ({EMBED: torch.zeros(32, 64, dtype=torch.bfloat16)}, "bfloat16, the model's is torch.float32"),
        (
            {EMBED: torch.zeros(32, 64), "lm_head.weight": torch.ones(32, 64)},
            "tied in the model but have different values",
        ),
    ],
)
def test_update_that_does_not_fit_is_refused_and_writes_nothing(
    tensors: dict[str, torch.Tensor], said: str, paused_engine: EmbeddedEngine
) -> None:
    before = paused_engine._parameters["model.norm.weight"].clone()
    with pytest.raises(ValueError, match=said):
        paused_engine.update_weights(bucket_of({"model.norm.weight": torch.zeros(64), **tensors}))
    assert torch.equal(paused_engine._parameters["model.norm.weight"], before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": np.zeros(255, np.uint8)}, "need 256 contiguous bytes, data has 255"),
        ({"dtypes": ["int4"]}, "dtypes .'int4'. are unknown"),
        ({"shapes": []}, "1 names .1 distinct., 0 shapes"),
        ({"names": ["a", "a"]}, "1 distinct"),
    ],
)
def test_malformed_bucket_is_refused(change: dict[str, Any], said: str, paused_engine: EmbeddedEngine) -> None:
    bucket = bucket_of({"model.norm.weight": torch.zeros(64)})
    with pytest.raises(ValueError, match=said):
        paused_engine.update_weights(dataclasses.replace(bucket, **change))


def test_update_needs_a_pause(engine: EmbeddedEngine) -> None:
    with pytest.raises(RuntimeError, match="pause"):
        engine.update_weights(bucket_of({"model.norm.weight": torch.zeros(64)}))
