"""Supervised warm-up on the labels, for models that start from nothing."""

from __future__ import annotations

from relax.config.errors import ConfigError
from relax.data.batch import batch_from_samples
from relax.data.sample import Sample
from relax.data.source import Prompt
from relax.runtime.run import Run


def supervised_sample(prompt: Prompt, index: int, run: Run) -> Sample:
    """The label as if the model had written it, stop token included.

    Raises:
        ConfigError: the prompt has no label to learn from.
    """
    if prompt.label is None:
        raise ConfigError("train.sft.num_steps > 0 learns from labels, and the data has none: train.sft.num_steps=0")
    ids = [*run.tokenizer.encode(prompt.label, add_special_tokens=False), run.tokenizer.eos_token_id]
    return Sample(
        index=index,
        group_index=index,
        rollout_id=-1,
        prompt=prompt.prompt,
        prompt_token_ids=prompt.token_ids,
        response_token_ids=ids,
        rollout_log_probs=[0.0] * len(ids),
        loss_mask=[1] * len(ids),
        weight_versions=[0] * len(ids),
    )


def warm_up(run: Run) -> None:
    """Run the supervised steps that the config asks for, before the first rollout."""
    sft = run.config.train.sft
    if sft.num_steps == 0:
        return
    run.trainer.start_sft()
    run.tracker.display.start("warm-up", total=sft.num_steps)
    for step in range(sft.num_steps):
        prompts = run.source.batch(step, sft.batch_size)
        samples = [supervised_sample(prompt, index, run) for index, prompt in enumerate(prompts)]
        metrics = run.trainer.train_sft_step(batch_from_samples(samples))
        run.tracker.display.update(step + 1, {"loss": f"{metrics['loss']:.3f}"})
    run.trainer.finish_sft()
    run.tracker.event(0, "warm_up", num_steps=sft.num_steps, loss=metrics["loss"])
