"""The Megatron model against transformers: logits, log-probs, imported and exported weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from relax.data.batch import TrainBatch
from relax.training.worker import merge_scores
from tests.helpers import training
from tests.helpers.workers import run_ranks

full = pytest.mark.full
CASES = [
    pytest.param(("qwen3_tied", 1), id="qwen3_tied-tp1"),
    pytest.param(("qwen2_untied", 1), id="qwen2_untied-tp1"),
    pytest.param(("llama_scaled", 1), id="llama_scaled-tp1"),
    pytest.param(("qwen3_odd_vocab", 2), id="qwen3_odd_vocab-tp2"),
    pytest.param(("qwen3_tied", 2), id="qwen3_tied-tp2", marks=full),
    pytest.param(("qwen2_untied", 2), id="qwen2_untied-tp2", marks=full),
    pytest.param(("llama_scaled", 2), id="llama_scaled-tp2", marks=full),
]
TOLERANCE = 1e-5


@dataclass
class Case:
    source: Path
    saved: Path
    batch: TrainBatch
    ranks: list[Any]
    """(logits, score, buckets) of each tensor-parallel rank."""
    temperature: float = 0.7

    def logits(self) -> dict[int, np.ndarray]:
        """[T, V] logits of each row of the batch, gathered over the vocabulary."""
        by_row: dict[int, np.ndarray] = {}
        vocab_size = training.hf_model(self.source).config.vocab_size
        for shards in zip(*(logits for logits, _, _ in self.ranks)):
            rows, lengths, _ = shards[0]
            whole = np.concatenate([values for _, _, values in shards], axis=1)[:, :vocab_size]
            by_row |= dict(zip(rows, np.split(whole, np.cumsum(lengths)[:-1])))
        return by_row


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, tensor = request.param
    folder = tmp_path_factory.mktemp("hf")
    config = training.make_config(
        *training.FAMILIES[family],
        f"parallelism.tensor={tensor}",
        "train.max_tokens_per_gpu=60",
        "rollout.temperature=0.7",
    )
    source = training.make_model(config, folder / "source")
    assert config.model.arch is not None
    batch = training.make_batch(vocab_size=config.model.arch.vocab_size)
    ranks = run_ranks(training.forward_and_export, tensor, config, source, batch, folder / "saved")
    return Case(source, folder / "saved", batch, ranks)


def test_logits_equal_transformers(case: Case) -> None:
    model, logits = training.hf_model(case.source), case.logits()
    with torch.no_grad():
        for row, tokens in enumerate(training.sequences(case.batch)):
            expected = model(tokens[None]).logits[0]
            # wide distributions, so that the agreement means something
            assert expected.abs().max() > 1
            torch.testing.assert_close(torch.from_numpy(logits[row]), expected, rtol=0, atol=TOLERANCE)


def test_log_probs_equal_transformers_at_the_sampling_temperature(case: Case) -> None:
    scores = merge_scores([score for _, score, _ in case.ranks], case.batch)
    with torch.no_grad():
        expected = training.reference_log_probs(
            training.hf_model(case.source), case.batch, temperature=case.temperature
        )
    torch.testing.assert_close(torch.from_numpy(scores), torch.cat(expected), rtol=0, atol=TOLERANCE)


def test_exported_tensors_are_bit_equal_to_the_imported(case: Case) -> None:
    source = load_file(case.source / "model.safetensors")
    for _, _, buckets in case.ranks:
        assert len(buckets) > 1
        exported = training.unpack_buckets(buckets)
        assert exported.keys() == source.keys()
        assert all(torch.equal(exported[name], source[name]) for name in source)


def test_saved_folder_loads_in_transformers_with_equal_logits(case: Case) -> None:
    source, saved = training.hf_model(case.source), training.hf_model(case.saved)
    tokens = torch.from_numpy(case.batch.tokens[:8])[None]
    with torch.no_grad():
        assert torch.equal(source(tokens).logits, saved(tokens).logits)


def test_saved_folder_carries_the_tokenizer_and_no_stale_marker(case: Case) -> None:
    names = {path.name for path in case.saved.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= names
    # the folder is no longer a random model: it must not be taken for one
    assert "relax_init.json" not in names
    assert [path.name for path in case.saved.parent.glob(".*")] == []
