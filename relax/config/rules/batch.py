"""Rules on batch arithmetic: rollouts, optimizer steps, token budgets."""

from __future__ import annotations

from collections.abc import Iterator

from relax.config.rules.base import Finding, Severity, rule
from relax.config.rules.helpers import arch_or_none, at_least
from relax.config.schema import RunConfig


@rule("batch.sizes", "rollout.batch_size", "rollout.n_samples_per_prompt", "train")
def sizes(config: RunConfig) -> Iterator[Finding]:
    """Counts are positive."""
    rollout, train = config.rollout, config.train
    for path, value in (
        ("rollout.batch_size", rollout.batch_size),
        ("rollout.n_samples_per_prompt", rollout.n_samples_per_prompt),
        ("rollout.max_response_len", rollout.max_response_len),
        ("rollout.num_engines", rollout.num_engines),
        ("rollout.max_batch_sequences", rollout.max_batch_sequences),
        ("train.global_batch_size", train.global_batch_size),
        ("train.num_steps_per_rollout", train.num_steps_per_rollout),
        ("train.max_tokens_per_gpu", train.max_tokens_per_gpu),
        ("train.log_probs_max_tokens_per_gpu", train.log_probs_max_tokens_per_gpu),
        ("train.num_rollout", train.num_rollout),
        ("train.num_epoch", train.num_epoch),
        ("train.sft.batch_size", train.sft.batch_size),
        ("train.stop.window", train.stop.window),
        ("save.interval", config.save.interval),
        ("save.keep", config.save.keep),
    ):
        yield from at_least(path, value, 1, "it counts something that must be there")
    yield from at_least("train.sft.num_steps", train.sft.num_steps, 0, "it counts optimizer steps; 0 is none")


@rule("batch.length", "train.num_rollout", "train.num_epoch")
def length(config: RunConfig) -> Iterator[Finding]:
    """Something ends the run."""
    if config.train.num_rollout is None and config.train.num_epoch is None:
        yield Finding(
            "train.num_rollout",
            "null",
            "num_rollout or num_epoch",
            "otherwise nothing ends the run",
            "train.num_rollout=100 (or train.num_epoch=1)",
        )


@rule("batch.global_batch", "train.global_batch_size", "train.num_steps_per_rollout", "rollout")
def global_batch(config: RunConfig) -> Iterator[Finding]:
    """A rollout is cut into whole optimizer steps, and a step into equal data-parallel shares."""
    samples = config.rollout.batch_size * config.rollout.n_samples_per_prompt
    size, steps = config.train.global_batch_size, config.train.num_steps_per_rollout
    if samples < 1 or size is None or size < 1:
        return
    if samples % size:
        yield Finding(
            "train.global_batch_size",
            size,
            f"a divisor of the {samples} samples of a rollout",
            "a rollout is trained in whole optimizer steps",
            "train.global_batch_size=null (or change rollout.batch_size × rollout.n_samples_per_prompt)",
        )
    elif steps is not None and steps >= 1 and steps * size != samples:
        yield Finding(
            "train.num_steps_per_rollout",
            steps,
            f"{samples // size} (or null)",
            f"{steps} steps × {size} samples is not the {samples} samples of a rollout",
            "train.num_steps_per_rollout=null",
        )
    data = config.parallelism.data or 1
    if data > 1 and size % data:
        yield Finding(
            "train.global_batch_size",
            size,
            f"a multiple of parallelism.data={data}",
            "every data-parallel rank trains on the same number of samples",
            f"rollout.batch_size={-(-config.rollout.batch_size // data) * data} train.global_batch_size=null",
        )


@rule("batch.steps_divide", "train.num_steps_per_rollout", "rollout")
def steps_divide(config: RunConfig) -> Iterator[Finding]:
    """`num_steps_per_rollout` alone must divide the rollout."""
    samples = config.rollout.batch_size * config.rollout.n_samples_per_prompt
    steps = config.train.num_steps_per_rollout
    if config.train.global_batch_size is None and steps is not None and steps >= 1 and samples % steps:
        yield Finding(
            "train.num_steps_per_rollout",
            steps,
            f"a divisor of the {samples} samples of a rollout",
            "a rollout is trained in equal optimizer steps",
            "train.num_steps_per_rollout=1",
        )


@rule("batch.context_length", "rollout.max_response_len", "data.max_prompt_len", "model.arch")
def context_length(config: RunConfig) -> Iterator[Finding]:
    """Prompt and response fit the model's context."""
    arch = arch_or_none(config)
    if arch is None or arch.max_position_embeddings < 1:
        return
    prompt = config.data.max_prompt_len or 1
    longest, limit = prompt + config.rollout.max_response_len, arch.max_position_embeddings
    if longest > limit:
        yield Finding(
            "rollout.max_response_len",
            config.rollout.max_response_len,
            f"prompt + response within {limit} tokens (data.max_prompt_len={config.data.max_prompt_len})",
            "the model accepts no longer sequence",
            f"rollout.max_response_len={max(1, limit - prompt)} (less where prompts are longer)",
        )


@rule("batch.token_budget", "train.max_tokens_per_gpu", "rollout", "data", severity=Severity.warning)
def token_budget(config: RunConfig) -> Iterator[Finding]:
    """The longest sample fits the token budget; otherwise it gets a micro-batch of its own, over the budget."""
    longest = (config.data.max_prompt_len or 0) + config.rollout.max_response_len
    if config.train.max_tokens_per_gpu < longest:
        yield Finding(
            "train.max_tokens_per_gpu",
            config.train.max_tokens_per_gpu,
            f"at least the longest sample ({longest})",
            "a longer sample is trained in a micro-batch of its own, which may not fit the memory",
            f"train.max_tokens_per_gpu={longest}",
        )
