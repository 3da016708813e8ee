"""A tiny random model, its Hugging Face twin, and requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from relax.config.schema import ArchConfig
from relax.data.model_folder import arch_to_hf
from relax.rollout.embedded import EmbeddedEngine
from relax.rollout.protocol import GenerateRequest, SamplingParams

torch.set_num_threads(1)


def _tiny_model(**arch: Any) -> PreTrainedModel:
    """Random weights with a spread that makes distributions far from uniform."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(arch_to_hf(ArchConfig(**arch)), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    return model


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., PreTrainedModel]:
    """Make a model; keyword arguments are fields of `ArchConfig`."""
    return _tiny_model


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return _tiny_model()


@pytest.fixture
def engine(model: PreTrainedModel) -> EmbeddedEngine:
    return EmbeddedEngine(model, stop_ids=frozenset({2}), pad_id=0)


@pytest.fixture
def make_requests() -> Callable[..., list[GenerateRequest]]:
    """`count` requests with prompts of 1 to 12 random tokens; every third repeats its predecessor's prompt."""

    def make(count: int, *, max_response_len: int = 6, seed: int = 0, **sampling: Any) -> list[GenerateRequest]:
        rng = np.random.default_rng(seed)
        prompts: list[list[int]] = []
        for i in range(count):
            repeat = prompts and i % 3 == 2
            prompts.append(prompts[-1] if repeat else rng.integers(3, 32, rng.integers(1, 13)).tolist())
        params = SamplingParams(max_response_len, **sampling)
        return [GenerateRequest(prompt, seed=1000 + i, sampling=params) for i, prompt in enumerate(prompts)]

    return make
