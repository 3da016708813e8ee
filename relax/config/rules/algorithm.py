"""Rules on the algorithm's own numbers."""

from __future__ import annotations

from collections.abc import Iterator

from relax.config.rules.base import Finding, rule
from relax.config.rules.helpers import at_least
from relax.config.schema import ImportanceKind, KlKind, OldPolicy, RunConfig


@rule("algorithm.clip", "algorithm.loss")
def clip(config: RunConfig) -> Iterator[Finding]:
    """Clip bounds leave room around 1."""
    loss = config.algorithm.loss
    if not 0 < loss.eps_clip < 1:
        yield Finding(
            "algorithm.loss.eps_clip",
            loss.eps_clip,
            "in (0, 1)",
            "the ratio is kept at or above 1 - eps_clip",
            "algorithm.loss.eps_clip=0.2",
        )
    if loss.eps_clip_high <= 0:
        yield Finding(
            "algorithm.loss.eps_clip_high",
            loss.eps_clip_high,
            "above 0",
            "the ratio is kept at or below 1 + it",
            "algorithm.loss.eps_clip_high=0.28",
        )
    if loss.dual_clip is not None and loss.dual_clip <= 1:
        yield Finding(
            "algorithm.loss.dual_clip",
            loss.dual_clip,
            "above 1 (or null)",
            "at or below 1 it would cut the unclipped loss",
            "algorithm.loss.dual_clip=3.0",
        )
    yield from at_least(
        "algorithm.loss.entropy_coef", loss.entropy_coef, 0, "it rewards entropy; a negative value punishes it"
    )


@rule("algorithm.kl", "algorithm.kl")
def kl(config: RunConfig) -> Iterator[Finding]:
    """One use of the KL, with an estimator that has a gradient."""
    term = config.algorithm.kl
    yield from at_least("algorithm.kl.loss_coef", term.loss_coef, 0, "it weighs a penalty")
    yield from at_least("algorithm.kl.penalty_coef", term.penalty_coef, 0, "it weighs a penalty")
    if term.loss_coef > 0 and term.penalty_coef > 0:
        yield Finding(
            "algorithm.kl.loss_coef",
            term.loss_coef,
            "0 while penalty_coef is set (or the other way round)",
            "the same KL would be counted twice",
            "algorithm.kl.loss_coef=0 (or algorithm.kl.penalty_coef=0)",
        )
    if term.loss_coef > 0 and term.kind is KlKind.k1:
        yield Finding(
            "algorithm.kl.kind",
            "k1",
            "k2, k3 or unbiased as a loss term",
            "the expected gradient of k1 as a loss is zero: it would do nothing",
            "algorithm.kl.kind=k3",
        )


@rule("algorithm.importance", "algorithm.importance", "algorithm.old_policy")
def importance(config: RunConfig) -> Iterator[Finding]:
    """Bounds in order, and a trainer-side old policy to compare the engine with."""
    term = config.algorithm.importance
    if term.kind is ImportanceKind.none:
        return
    if term.cap <= 0:
        yield Finding(
            "algorithm.importance.cap", term.cap, "above 0", "weights are cut to it", "algorithm.importance.cap=2.0"
        )
    if not 0 < term.low < term.high:
        yield Finding(
            "algorithm.importance.low",
            term.low,
            f"0 < low < high (high is {term.high})",
            "weights outside [low, high] are masked",
            "algorithm.importance.low=0.5 algorithm.importance.high=2.0",
        )
    if config.algorithm.old_policy is OldPolicy.rollout:
        yield Finding(
            "algorithm.importance.kind",
            term.kind.value,
            "none with old_policy=rollout",
            "the old policy is then the engine itself: every weight would be 1",
            "algorithm.importance.kind=none (or algorithm.old_policy=trainer)",
        )
