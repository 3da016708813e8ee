"""Engine and trainer mean the same distribution: on-policy, the ratio is 1 at every sampling temperature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relax.config.schema import DType
from relax.data.batch import batch_from_samples
from relax.data.source import PromptSource
from relax.data.tokenizer import load_tokenizer
from relax.rollout.embedded import EmbeddedEngine
from relax.rollout.groups import attach_results, build_requests, make_samples
from relax.rollout.protocol import SamplingParams
from relax.training.worker import TrainWorker, merge_scores
from tests.helpers.training import make_config, make_model
from tests.helpers.workers import Rank, run_ranks

TOLERANCE = 1e-5


def generate_and_score(rank: Rank, folder: Path, temperature: float, trainer_temperature: float) -> float:
    """Largest |log ratio| between a rollout's own log-probs and the trainer's, after a published update."""
    config = make_config(f"rollout.temperature={trainer_temperature}")
    worker = TrainWorker(
        config, model_dir=folder, rank=rank.rank, world_size=1, init_method=rank.init_method(), device="cpu"
    )
    try:
        engine = EmbeddedEngine.from_folder(folder, dtype=DType.fp32)
        tokenizer = load_tokenizer(folder)
        source = PromptSource(config.data, tokenizer, seed=0)
        samples = make_samples(source.batch(0, 16), rollout_id=0, num_samples=4, first_index=0, first_group=0)
        # other weights than the folder's, so that publication is part of what is shown
        batch = _rollout(engine, samples, tokenizer, temperature)
        old = merge_scores([worker.score(batch, policy="actor")], batch)
        advantages = np.where(np.arange(len(old)) % 2, 1.0, -1.0).astype(np.float32)
        worker.train_step(batch.with_fields(advantages=advantages, old_log_probs=old))
        engine.pause()
        for bucket in worker.export_buckets(2**20):
            engine.update_weights(bucket)
        engine.resume(version=1)
        samples = make_samples(source.batch(1, 16), rollout_id=1, num_samples=4, first_index=64, first_group=16)
        batch = _rollout(engine, samples, tokenizer, temperature)
        scores = merge_scores([worker.score(batch, policy="actor")], batch)
        return float(np.abs(scores - batch.rollout_log_probs).max())
    finally:
        worker.shutdown()


def _rollout(engine, samples, tokenizer, temperature):  # type: ignore[no-untyped-def]
    sampling = SamplingParams(max_response_len=5, temperature=temperature)
    attach_results(samples, engine.generate(build_requests(samples, seed=0, sampling=sampling)), tokenizer)
    return batch_from_samples(samples)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(make_config(), tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_on_policy_the_ratio_is_one(temperature: float, folder: Path) -> None:
    assert run_ranks(generate_and_score, 1, folder, temperature, temperature)[0] < TOLERANCE


def test_the_check_would_notice_a_forgotten_temperature(folder: Path) -> None:
    assert run_ranks(generate_and_score, 1, folder, 0.6, 1.0)[0] > 100 * TOLERANCE
