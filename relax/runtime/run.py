"""`Run`: the parts of one run, joined. The loops read it; only `launch` builds it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relax.config.schema import ArchConfig, RunConfig
from relax.data.source import PromptSource
from relax.rewards.scoring import RewardScorer
from relax.runtime.engine_group import EngineGroup
from relax.runtime.ledger import Ledger
from relax.runtime.trainer_group import TrainerGroup
from relax.tracking.run_dir import RunDir
from relax.tracking.tracker import Tracker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class EvalSet:
    """One evaluation set, ready to run."""

    name: str
    source: PromptSource
    scorer: RewardScorer


@dataclass
class Run:
    """One run in progress."""

    config: RunConfig
    arch: ArchConfig
    tokenizer: PreTrainedTokenizerBase
    source: PromptSource
    scorer: RewardScorer
    eval_sets: list[EvalSet]
    trainer: TrainerGroup
    engines: EngineGroup
    ledger: Ledger
    tracker: Tracker
    run_dir: RunDir
    num_rollout: int
    """Rollouts of the whole run."""
    recent_rewards: list[float] = field(default_factory=list)
    """Mean rewards of the last rollouts, for the early stop."""

    def close(self) -> None:
        """Stop scorers and close files."""
        self.scorer.close()
        for item in self.eval_sets:
            if item.scorer is not self.scorer:
                item.scorer.close()
        self.tracker.close()


class PhaseTimer:
    """Wall time of the named phases of one step, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a block; blocks of one name add up."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def total(self) -> float:
        """Seconds since the timer was made."""
        return time.perf_counter() - self._start
