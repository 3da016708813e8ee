"""The real run loop with real trainer ranks in this process and a fake engine: for the loop's logic, never as proof of
generation. Every rank runs the same loop; results of the ranks are merged as the runtime's trainer group does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relax.config.arch import read_hf_config
from relax.config.hf_arch import arch_from_hf_config
from relax.config.resolve import resolve_length
from relax.config.schema import RunConfig
from relax.data.batch import FloatArray, TrainBatch
from relax.data.model_folder import materialize_model
from relax.data.source import PromptSource
from relax.data.tokenizer import EOS_ID, load_tokenizer
from relax.rewards.scoring import RewardScorer
from relax.rollout.protocol import GenerateRequest, GenerateResult
from relax.runtime.colocate import run_colocate
from relax.runtime.ledger import Ledger
from relax.runtime.run import EvalSet, Run
from relax.runtime.trainer_group import merge_steps
from relax.tracking.run_dir import RunDir
from relax.tracking.tracker import Tracker
from relax.training.worker import Policy, TrainWorker, merge_scores
from tests.helpers.training import trainer
from tests.helpers.workers import Rank


class FakeEngines:
    """Random digits of random length, deterministic in the requests' seeds."""

    def __init__(self) -> None:
        self.version = -1

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        return [self._answer(request) for request in requests]

    def publish(self, buckets: Sequence[Any], *, version: int) -> None:
        if version < self.version or not buckets:
            raise ValueError(f"publication {version} after {self.version} with {len(buckets)} buckets")
        self.version = version

    def _answer(self, request: GenerateRequest) -> GenerateResult:
        rng = np.random.default_rng(request.seed)
        length = int(rng.integers(1, request.sampling.max_response_len + 1))
        ids = rng.integers(3, 13, length).tolist()
        stopped = bool(rng.random() < 0.7)
        if stopped:
            ids[-1] = EOS_ID
        log_probs = (-rng.random(length)).tolist()
        return GenerateResult(ids, log_probs, "stop" if stopped else "length", self.version)


class SpmdTrainer:
    """The trainer group's calls on this rank's worker; parts of other ranks come by all-gather."""

    def __init__(self, worker: TrainWorker) -> None:
        self._worker = worker
        self.peak_memory: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def score(self, batch: TrainBatch, *, policy: Policy) -> FloatArray:
        return merge_scores(_gather(self._worker.score(batch, policy=policy)), batch)

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        return merge_steps(_gather(self._worker.train_step(batch)))

    def train_sft_step(self, batch: TrainBatch) -> dict[str, float]:
        return merge_steps(_gather(self._worker.train_sft_step(batch)))

    def publish(self) -> list[Any]:
        return list(self._worker.export_buckets(2**20))


def _gather(value: Any) -> list[Any]:
    import torch.distributed as dist

    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def run_with_fake_engine(rank: Rank, config: RunConfig, folder: Path) -> list[float]:
    """Run `config` (resolved) with a fake engine; the ledger must balance. Returns the rewards of the last rollouts."""
    model_dir = materialize_model(config.model, seed=config.seed, folder=folder / f"model-{rank.rank}")
    tokenizer = load_tokenizer(model_dir)
    source = PromptSource(config.data, tokenizer, seed=config.seed)
    config, _ = resolve_length(config, num_prompts=len(source))
    directory = RunDir(folder / f"run-{rank.rank}")
    directory.create(resuming=False)
    arch = arch_from_hf_config(read_hf_config(model_dir) or {})
    scorer = RewardScorer(config.reward)
    sources = {name: PromptSource(item.data, tokenizer, seed=config.seed) for name, item in config.eval.sets.items()}
    with trainer(rank, config, model_dir) as worker:
        run = Run(
            config=config,
            arch=arch,
            tokenizer=tokenizer,
            source=source,
            scorer=scorer,
            eval_sets=[EvalSet(name, item, scorer) for name, item in sources.items()],
            trainer=SpmdTrainer(worker),  # type: ignore[arg-type]
            engines=FakeEngines(),  # type: ignore[arg-type]
            ledger=Ledger(),
            tracker=Tracker(config, directory),
            run_dir=directory,
            num_rollout=config.train.num_rollout or 1,
        )
        try:
            run_colocate(run, first_rollout=0)
            run.ledger.check()
        finally:
            run.close()
        return run.recent_rewards
