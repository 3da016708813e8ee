"""Rules on sampling, time-outs and evaluation."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from relax.config.rules.base import Finding, Severity, rule
from relax.config.rules.helpers import arch_or_none, at_least, within
from relax.config.schema import RunConfig


@rule("rollout.sampling", "rollout.temperature", "rollout.top_p", "rollout.top_k")
def sampling(config: RunConfig) -> Iterator[Finding]:
    """Training needs draws: a positive temperature, and bounds in range."""
    rollout = config.rollout
    if rollout.temperature <= 0:
        yield Finding(
            "rollout.temperature",
            rollout.temperature,
            "above 0",
            "greedy responses of one prompt are all equal: no group would have an advantage",
            "rollout.temperature=1.0",
        )
    yield from within(
        "rollout.top_p", rollout.top_p, 0, 1, "it is a share of probability mass", default=1.0, open_low=True
    )
    if rollout.top_k != -1 and rollout.top_k < 1:
        yield Finding("rollout.top_k", rollout.top_k, "-1 (all) or at least 1", "it counts tokens", "rollout.top_k=-1")


@rule("rollout.truncated_sampling", "rollout.top_p", "rollout.top_k", severity=Severity.warning)
def truncated_sampling(config: RunConfig) -> Iterator[Finding]:
    """Top-p and top-k draw from another distribution than the one the log-probs describe."""
    rollout = config.rollout
    for path, value, off in (
        ("rollout.top_p", rollout.top_p, rollout.top_p < 1),
        ("rollout.top_k", rollout.top_k, rollout.top_k >= 1),
    ):
        if off:
            neutral = "1.0" if path == "rollout.top_p" else "-1"
            yield Finding(
                path,
                value,
                f"{neutral} for training",
                "log-probs are of the full distribution, tokens are drawn from a cut one: the ratios are biased",
                f"{path}={neutral}",
            )


@rule("rollout.timeouts", "rollout", "train.step_timeout_seconds", "launcher.start_timeout_seconds")
def timeouts(config: RunConfig) -> Iterator[Finding]:
    """Every wait is finite and positive."""
    for path, value in (
        ("rollout.engine_start_timeout_seconds", config.rollout.engine_start_timeout_seconds),
        ("rollout.http_timeout_seconds", config.rollout.http_timeout_seconds),
        ("rollout.generate_timeout_seconds", config.rollout.generate_timeout_seconds),
        ("train.step_timeout_seconds", config.train.step_timeout_seconds),
        ("launcher.start_timeout_seconds", config.launcher.start_timeout_seconds),
    ):
        if not 0 < value < float("inf"):
            yield Finding(path, value, "above 0 and finite", "a wait must end", f"{path}=600")


@rule("eval.sets", "eval", "model.arch", "rollout.max_response_len")
def eval_sets(config: RunConfig) -> Iterator[Finding]:
    """Evaluation sets have sensible sizes and fit the context."""
    yield from at_least("eval.interval", config.eval.interval, 1, "it counts rollouts")
    arch = arch_or_none(config)
    for name, item in config.eval.sets.items():
        prefix = f"eval.sets.{name}"
        yield from at_least(f"{prefix}.n_samples_per_prompt", item.n_samples_per_prompt, 1, "it counts responses")
        yield from at_least(f"{prefix}.max_prompts", item.max_prompts, 1, "it counts prompts")
        yield from at_least(f"{prefix}.max_response_len", item.max_response_len, 1, "it counts tokens")
        yield from at_least(f"{prefix}.temperature", item.temperature, 0, "0 is greedy")
        yield from within(f"{prefix}.top_p", item.top_p, 0, 1, "it is a share of mass", default=1.0, open_low=True)
        response = item.max_response_len  # an inherited cap is the rule batch.context_length's concern
        longest = (item.data.max_prompt_len or 0) + (response or 0)
        if arch is not None and response is not None and longest > arch.max_position_embeddings:
            yield Finding(
                f"{prefix}.max_response_len",
                response,
                f"prompt + response within {arch.max_position_embeddings}",
                "the model accepts no longer sequence",
                f"{prefix}.max_response_len={max(1, arch.max_position_embeddings - (item.data.max_prompt_len or 0))}",
            )
        if item.temperature == 0 and item.n_samples_per_prompt > 1:
            yield Finding(
                f"{prefix}.n_samples_per_prompt",
                item.n_samples_per_prompt,
                "1 with temperature 0",
                "greedy responses of one prompt are all equal",
                f"{prefix}.n_samples_per_prompt=1",
            )


OWN_SERVER_ARGS = {
    "model_path": "model.source",
    "tp_size": "rollout.num_gpus_per_engine",
    "dtype": "model.dtype",
    "host": "the launcher",
    "port": "the launcher",
}
"""Server arguments that Relax sets itself, and from what."""


def sglang_server_args() -> list[str]:
    """Names of SGLang's server arguments (recorded from version 0.5.12.post1)."""
    return (Path(__file__).parents[1] / "sglang_server_args.txt").read_text(encoding="utf-8").split()


@rule("rollout.sglang_args", "rollout.sglang")
def sglang_args(config: RunConfig) -> Iterator[Finding]:
    """Server arguments are known to SGLang, and are not ones that Relax derives."""
    known = sglang_server_args() if config.rollout.sglang else []
    for name, value in config.rollout.sglang.items():
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3)) or "its documentation lists them"
            yield Finding(
                f"rollout.sglang.{name}",
                value,
                f"an argument of SGLang's server (near: {near})",
                "the server would refuse to start",
                f"~rollout.sglang.{name}",
            )
        elif name in OWN_SERVER_ARGS:
            yield Finding(
                f"rollout.sglang.{name}",
                value,
                f"absent: it follows from {OWN_SERVER_ARGS[name]}",
                "two places would decide the same thing",
                f"~rollout.sglang.{name}",
            )


@rule("rollout.over_sampling", "rollout.over_sampling_batch_size", "rollout.batch_size")
def over_sampling(config: RunConfig) -> Iterator[Finding]:
    """Over-sampling generates at least the prompts that must be left."""
    size = config.rollout.over_sampling_batch_size
    if size is not None and size < config.rollout.batch_size:
        yield Finding(
            "rollout.over_sampling_batch_size",
            size,
            f"at least rollout.batch_size={config.rollout.batch_size}",
            "filtering only removes prompts",
            f"rollout.over_sampling_batch_size={config.rollout.batch_size}",
        )
