"""Score generated samples: answer part, format part, their weighted sum. Knows nothing of engines or trainers.

Kinds: `exact_match` and the format part run inline (microseconds); `math` in worker processes with a hard time-out;
`reasoning_gym` and `custom` in threads with a time-out.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from relax.config.errors import ConfigError
from relax.config.schema.data import RewardConfig
from relax.config.schema.enums import RewardKind
from relax.data.sample import Sample, SampleStatus
from relax.rewards.calls import RewardError, call_each
from relax.rewards.custom import import_reward, parts_of
from relax.rewards.math_pool import MathPool

Parts = tuple[dict[str, float], float | None]
"""Unweighted parts, and the total where the scorer gave one itself."""


UNGRADED: Parts = ({"answer": 0.0}, None)
"""Of a sample that did not stop, or whose scorer took too long."""


@dataclass(frozen=True)
class RewardReport:
    """Counts over one call. num_scored + num_skipped is the number of samples."""

    num_scored: int
    num_skipped: int
    """Aborted and failed samples: their reward stays None."""
    num_timeouts: int
    """Scored 0 on the answer because the scorer took too long."""
    num_unfinished: int
    """Scored 0 on the answer because they did not stop (`require_stop`)."""
    mean_reward: float
    """Mean over the scored samples; 0 when there is none."""
    mean_parts: dict[str, float] = field(default_factory=dict)
    """Mean of each part over the scored samples that have it."""
    seconds: float = 0.0


class RewardScorer:
    """Scores with one `RewardConfig`; keeps its worker processes between calls. Close it, or use it in a `with`.

    `sample.reward` = answer_weight · answer + format_weight · format, `reward_parts` holds the unweighted parts. Under
    `require_stop` a sample that did not stop gets answer 0 and its scorer is not called, whatever the kind. A custom
    reward that returns a dict gives the parts by its own names: its total (key `reward`, else their sum) stands for the
    answer in the sum.

    Raises (on construction):
        ConfigError: a config that cannot score (bad weights, pattern, time-out, path).
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        _check(config)
        self._format = None if config.format_pattern is None else re.compile(config.format_pattern, re.DOTALL)
        self._custom = import_reward(config.path) if config.kind is RewardKind.custom else None
        self._math = MathPool(max_workers=config.num_workers, timeout_seconds=config.timeout_seconds)

    def score(self, samples: Sequence[Sample]) -> RewardReport:
        """Fill `reward` and `reward_parts` of every completed or truncated sample, in place.

        Raises:
            ValueError: a pending sample, or one without the label that the kind needs.
            RewardError: the scorer raised or returned no number; names the sample. No sample is changed then.
        """
        start = time.monotonic()
        for sample in samples:
            if sample.status is SampleStatus.pending:
                raise ValueError(f"sample {sample.index} is pending; only generated samples can be scored")
        scored = [s for s in samples if s.status in (SampleStatus.completed, SampleStatus.truncated)]
        graded = [s for s in scored if s.status is SampleStatus.completed or not self._config.require_stop]
        parts_by_sample: dict[int, Parts] = {}
        num_timeouts = 0
        for sample, parts in zip(graded, self._grade(graded), strict=True):
            if isinstance(parts, TimeoutError):
                num_timeouts += 1
            else:
                parts_by_sample[id(sample)] = parts
        for sample in scored:
            self._assign(sample, *parts_by_sample.get(id(sample), UNGRADED))
        return RewardReport(
            num_scored=len(scored),
            num_skipped=len(samples) - len(scored),
            num_timeouts=num_timeouts,
            num_unfinished=len(scored) - len(graded),
            mean_reward=math.fsum(s.reward or 0.0 for s in scored) / max(1, len(scored)),
            mean_parts=_mean_parts(scored),
            seconds=time.monotonic() - start,
        )

    def close(self) -> None:
        """Stop the worker processes."""
        self._math.close()

    def __enter__(self) -> RewardScorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _assign(self, sample: Sample, parts: dict[str, float], total: float | None) -> None:
        config = self._config
        answer = math.fsum(parts.values()) if total is None else total
        reward = config.answer_weight * answer
        sample.reward_parts = dict(parts)
        if self._format is not None:
            matches = float(self._format.search(sample.response) is not None)
            sample.reward_parts["format"] = matches
            reward += config.format_weight * matches
        sample.reward = reward

    def _grade(self, samples: Sequence[Sample]) -> list[Parts | TimeoutError]:
        kind = self._config.kind
        if kind is RewardKind.exact_match:
            return [({"answer": float(s.response.strip() == _label(s).strip())}, None) for s in samples]
        if kind is RewardKind.math:
            return self._grade_math(samples)
        scorer = self._custom if self._custom is not None else score_reasoning_gym
        return self._grade_with(scorer, samples)

    def _grade_math(self, samples: Sequence[Sample]) -> list[Parts | TimeoutError]:
        verdicts = self._math.grade([(_label(sample), sample.response) for sample in samples])
        graded: list[Parts | TimeoutError] = []
        for sample, verdict in zip(samples, verdicts, strict=True):
            if verdict is None:
                raise RewardError(
                    f"sample {sample.index}: label {sample.label!r} is no expression that math-verify reads; "
                    "see data.label_key and data.label_pattern"
                )
            graded.append(verdict if isinstance(verdict, TimeoutError) else ({"answer": float(verdict)}, None))
        return graded

    def _grade_with(self, scorer: Callable[[Sample], Any], samples: Sequence[Sample]) -> list[Parts | TimeoutError]:
        values = call_each(
            scorer, samples, num_threads=self._config.num_workers, timeout_seconds=self._config.timeout_seconds
        )
        return [
            value if isinstance(value, TimeoutError) else parts_of(value, sample)
            for value, sample in zip(values, samples, strict=True)
        ]


def score_samples(samples: Sequence[Sample], config: RewardConfig) -> RewardReport:
    """Score once. A run that scores every rollout keeps a `RewardScorer` instead (math workers take 1 s to start)."""
    with RewardScorer(config) as scorer:
        return scorer.score(samples)


def score_reasoning_gym(sample: Sample) -> float:
    """The task's own score of the stripped response (its scorers treat padding inconsistently).

    Raises:
        ValueError: the sample does not come from `data.kind=reasoning_gym`.
    """
    origin = sample.metadata.get("reasoning_gym")
    if origin is None:
        raise ValueError("reward.kind=reasoning_gym needs prompts of data.kind=reasoning_gym")
    return float(_reasoning_gym_scorer(origin["task"])(sample.response.strip(), origin["entry"]))


@functools.cache
def _reasoning_gym_scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym.factory import get_score_answer_fn

    return get_score_answer_fn(task)


def _label(sample: Sample) -> str:
    if sample.label is None:
        raise ValueError(f"sample {sample.index} has no label; set data.label_key, or use reward.kind=custom")
    return sample.label


def _mean_parts(samples: Sequence[Sample]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.reward_parts.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(found) / len(found) for name, found in values.items()}


def _check(config: RewardConfig) -> None:
    if not (math.isfinite(config.timeout_seconds) and config.timeout_seconds > 0):
        raise ConfigError(f"reward.timeout_seconds={config.timeout_seconds} must be finite and above 0")
    if config.num_workers < 1:
        raise ConfigError(f"reward.num_workers={config.num_workers} must be at least 1")
    for name, weight in (("answer_weight", config.answer_weight), ("format_weight", config.format_weight)):
        if not math.isfinite(weight):
            raise ConfigError(f"reward.{name}={weight} must be a finite number")
    if config.format_pattern is None:
        if config.format_weight != 0:
            raise ConfigError(f"reward.format_weight={config.format_weight} needs reward.format_pattern")
        return
    try:
        re.compile(config.format_pattern)
    except re.error as error:
        raise ConfigError(f"reward.format_pattern={config.format_pattern!r} is no regex: {error}") from error
