"""Rules on distillation: OPD, OPSD, SDPO and their teachers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from relax.config.rules.base import Finding, Scope, rule
from relax.config.rules.helpers import arch_or_none
from relax.config.schema import (
    DivergenceKind,
    OpdConfig,
    OpsdConfig,
    OutsideKind,
    Reduction,
    RunConfig,
    SdpoConfig,
    SupportKind,
    TeacherKind,
)

TOP_K_SUPPORTS = (SupportKind.student_topk, SupportKind.teacher_topk, SupportKind.union)
"""Supports that have a size."""


@rule("distill.divergence", "algorithm.distill", "model.arch")
def divergence(config: RunConfig) -> Iterator[Finding]:
    """The divergence is defined: its mixture, its support and its temperature are in range."""
    algorithm = config.algorithm
    if not isinstance(algorithm, OpdConfig):
        return
    distill = algorithm.distill
    if distill.divergence is DivergenceKind.jsd and not 0 < distill.beta < 1:
        yield Finding(
            "algorithm.distill.beta",
            distill.beta,
            "strictly between 0 and 1",
            "the ends of the JSD are zero; forward_kl and reverse_kl are named, never reached through beta",
            "algorithm.distill.beta=0.5 (or algorithm.distill.divergence=reverse_kl)",
        )
    arch = arch_or_none(config)
    limit = arch.vocab_size if arch is not None else None
    out_of_range = distill.top_k < 1 or (limit is not None and distill.top_k > limit)
    if distill.support in TOP_K_SUPPORTS and out_of_range:
        yield Finding(
            "algorithm.distill.top_k",
            distill.top_k,
            f"between 1 and {limit or 'the vocabulary size'}",
            "it counts token ids",
            f"algorithm.distill.top_k={min(16, limit or 16)}",
        )
    if distill.temperature <= 0:
        yield Finding(
            "algorithm.distill.temperature",
            distill.temperature,
            "above 0",
            "both sides are divided by it",
            "algorithm.distill.temperature=1.0",
        )
    for name in ("loss_coef", "advantage_coef"):
        if vars(distill)[name] < 0:
            yield Finding(
                f"algorithm.distill.{name}",
                vars(distill)[name],
                "at least 0",
                "a negative weight drives the student away from its teacher",
                f"algorithm.distill.{name}=0",
            )


@rule("distill.term", "algorithm.distill")
def term(config: RunConfig) -> Iterator[Finding]:
    """The divergence enters once, as a loss on any support or as an advantage on the sampled token."""
    algorithm = config.algorithm
    if not isinstance(algorithm, OpdConfig):
        return
    distill = algorithm.distill
    if distill.advantage_coef > 0 and distill.support is not SupportKind.sampled:
        yield Finding(
            "algorithm.distill.support",
            distill.support.value,
            "sampled with advantage_coef above 0",
            "a divergence over a support does not depend on the sampled token: its expected policy gradient is zero",
            "algorithm.distill.support=sampled (or algorithm.distill.advantage_coef=0)",
        )
    if distill.loss_coef == 0 and distill.advantage_coef == 0:
        yield Finding(
            "algorithm.distill.loss_coef",
            0,
            "above 0 (or advantage_coef above 0)",
            "otherwise the teacher teaches nothing",
            "algorithm.distill.loss_coef=1.0 (or algorithm=grpo)",
        )


@rule("distill.sdpo", "algorithm", "rollout.n_samples_per_prompt")
def sdpo(config: RunConfig) -> Iterator[Finding]:
    """SDPO compares full groups on the student's own top-k, as a loss."""
    algorithm = config.algorithm
    if not isinstance(algorithm, SdpoConfig):
        return
    distill = algorithm.distill
    if distill.support is not SupportKind.student_topk:
        yield Finding(
            "algorithm.distill.support",
            distill.support.value,
            "student_topk",
            "the teacher is asked about the student's own most likely tokens",
            "algorithm.distill.support=student_topk",
        )
    if distill.outside is OutsideKind.truncate:
        yield Finding(
            "algorithm.distill.outside",
            "truncate",
            "tail or renormalize",
            "a truncated top-k is no distribution: its divergence can be negative",
            "algorithm.distill.outside=tail",
        )
    if distill.advantage_coef > 0:
        yield Finding(
            "algorithm.distill.advantage_coef",
            distill.advantage_coef,
            "0",
            "SDPO distils through the loss",
            "algorithm.distill.advantage_coef=0",
        )
    if algorithm.loss.reduction is not Reduction.token_mean:
        yield Finding(
            "algorithm.loss.reduction",
            algorithm.loss.reduction.value,
            "token_mean",
            "gated-off samples must not change the weight of the others",
            "algorithm.loss.reduction=token_mean",
        )
    if config.rollout.n_samples_per_prompt == 1:
        yield Finding(
            "rollout.n_samples_per_prompt",
            1,
            "at least 2",
            "the teacher prompt is built from the group's outcome",
            "rollout.n_samples_per_prompt=8",
        )
    feedback = algorithm.feedback
    if not re.fullmatch(r"[\w.]+:\w+", feedback.path):
        yield Finding(
            "algorithm.feedback.path",
            feedback.path,
            "package.module:Class",
            "it builds the teacher prompts",
            "algorithm.feedback.path=relax.feedback.sdpo:GoldenAnswerSDPOFeedback",
        )
    if feedback.max_teacher_prompt_len < 1:
        yield Finding(
            "algorithm.feedback.max_teacher_prompt_len",
            feedback.max_teacher_prompt_len,
            "at least 1",
            "it counts tokens",
            "algorithm.feedback.max_teacher_prompt_len=4096",
        )


@rule("distill.parallelism", "parallelism.pipeline", "parallelism.context", "algorithm.distill")
def parallelism(config: RunConfig) -> Iterator[Finding]:
    """The divergence needs whole rows of logits: no pipeline, and no context parallelism with a top-k."""
    algorithm, layout = config.algorithm, config.parallelism
    if not isinstance(algorithm, OpdConfig):
        return
    if layout.pipeline > 1:
        yield Finding(
            "parallelism.pipeline",
            layout.pipeline,
            "1",
            "teacher and student are compared on the last stage only",
            "parallelism.pipeline=1",
        )
    if layout.context > 1 and algorithm.distill.support in TOP_K_SUPPORTS:
        yield Finding(
            "parallelism.context",
            layout.context,
            "1 with a top-k support",
            "positions of one sequence would lie on several ranks",
            "parallelism.context=1",
        )


@rule("distill.opsd", "algorithm.teacher_prompt_key")
def opsd(config: RunConfig) -> Iterator[Finding]:
    """OPSD's teacher sees a privileged prompt, which some column must hold."""
    if isinstance(config.algorithm, OpsdConfig) and not config.algorithm.teacher_prompt_key:
        yield Finding(
            "algorithm.teacher_prompt_key",
            "null",
            "a column of the dataset",
            "the teacher's privileged prompt is read from it",
            "algorithm.teacher_prompt_key=teacher_prompt",
        )


@rule("distill.teacher", "teacher", "algorithm")
def teacher(config: RunConfig) -> Iterator[Finding]:
    """A distillation algorithm has a teacher, and a teacher has an algorithm."""
    distils, kind = isinstance(config.algorithm, OpdConfig), config.teacher.kind
    if distils and kind is TeacherKind.none:
        yield Finding(
            "teacher.kind",
            "none",
            "a teacher",
            f"algorithm={config.algorithm.name} compares the student with one",
            "teacher=frozen",
        )
    if not distils and kind is not TeacherKind.none:
        yield Finding(
            "teacher.kind",
            kind.value,
            "none",
            f"algorithm={config.algorithm.name} asks no teacher: it would do nothing",
            "teacher=none",
        )
    if distils and kind in (TeacherKind.checkpoint, TeacherKind.sglang) and config.teacher.source is None:
        yield Finding(
            "teacher.source",
            "null",
            "a model folder",
            f"teacher={kind.value} loads it",
            "teacher.source=FOLDER (or teacher=frozen)",
        )
    if kind is TeacherKind.ema and not 0 < config.teacher.ema_rate <= 1:
        yield Finding(
            "teacher.ema_rate",
            config.teacher.ema_rate,
            "in (0, 1]",
            "it is the student's share in each update",
            "teacher.ema_rate=0.05",
        )


@rule("distill.teacher_folder", "teacher.source", scope=Scope.files)
def teacher_folder(config: RunConfig) -> Iterator[Finding]:
    """The teacher's folder exists."""
    source = config.teacher.source
    if source is not None and not (Path(source).expanduser() / "config.json").is_file():
        yield Finding(
            "teacher.source",
            source,
            "a folder with config.json",
            "the teacher is loaded from it",
            "teacher.source=FOLDER (or paths.model_dir=PARENT)",
        )
