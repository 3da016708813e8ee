"""From prompts to samples, from samples to requests, and back: pure functions between data and engines."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from relax.data.sample import Sample, SampleStatus
from relax.data.source import Prompt
from relax.rollout.protocol import GenerateRequest, GenerateResult, SamplingParams
from relax.rollout.sampling import mix_seeds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNKNOWN_TOKEN_TEXT = "\N{REPLACEMENT CHARACTER}"
"""Text of an id that the model can produce but the tokenizer does not know (padded vocabularies)."""

_STATUS = {
    "stop": SampleStatus.completed,
    "length": SampleStatus.truncated,
    "abort": SampleStatus.aborted,
}


def make_samples(
    prompts: Sequence[Prompt], *, rollout_id: int, num_samples: int, first_index: int, first_group: int
) -> list[Sample]:
    """`num_samples` pending samples for each prompt, group by group; ids count up from `first_index`, `first_group`."""
    return [
        Sample(
            index=first_index + g * num_samples + i,
            group_index=first_group + g,
            rollout_id=rollout_id,
            prompt=copy.deepcopy(prompt.prompt),
            prompt_token_ids=list(prompt.token_ids),
            label=prompt.label,
            metadata=dict(prompt.metadata),
        )
        for g, prompt in enumerate(prompts)
        for i in range(num_samples)
    ]


def build_requests(samples: Sequence[Sample], *, seed: int, sampling: SamplingParams) -> list[GenerateRequest]:
    """One request for each sample, seeded by (run seed, `sample.index`): a repeated or resumed run draws the same."""
    seeds = mix_seeds(seed, [sample.index for sample in samples])
    return [
        GenerateRequest(sample.prompt_token_ids, seed=sample_seed, sampling=sampling)
        for sample, sample_seed in zip(samples, seeds, strict=True)
    ]


def attach_results(
    samples: Sequence[Sample], results: Sequence[GenerateResult], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Fill response, ids, log-probs, loss mask (all 1), versions and status of each sample, in place.

    Raises:
        ValueError: different counts, a sample that is not pending, or an unknown finish reason.
    """
    if len(samples) != len(results):
        raise ValueError(f"{len(results)} results for {len(samples)} samples")
    for sample, result in zip(samples, results, strict=True):
        if sample.status is not SampleStatus.pending:
            raise ValueError(f"sample {sample.index} is {sample.status.value} already; only pending ones take a result")
        if result.finish_reason not in _STATUS:
            raise ValueError(f"sample {sample.index}: finish reason {result.finish_reason!r}, known: {sorted(_STATUS)}")
        text_ids = result.token_ids[:-1] if result.finish_reason == "stop" else result.token_ids
        sample.response = decode(tokenizer, text_ids)
        sample.response_token_ids = list(result.token_ids)
        sample.rollout_log_probs = list(result.log_probs)
        sample.loss_mask = [1] * len(result.token_ids)
        sample.weight_versions = [result.weight_version] * len(result.token_ids)
        sample.status = _STATUS[result.finish_reason]


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Text of response ids, from which the caller has cut the stop token.

    Special tokens inside a response and ids unknown to the tokenizer stay visible (as their text, or U+FFFD): were they
    dropped, `43<pad>21` would read `4321` and be rewarded.
    """
    known = len(tokenizer)
    pieces: list[str] = []
    start = 0
    for i, token in enumerate(token_ids):
        if token >= known:
            pieces += [tokenizer.decode(list(token_ids[start:i])) if i > start else "", UNKNOWN_TOKEN_TEXT]
            start = i + 1
    if start < len(token_ids):
        pieces.append(tokenizer.decode(list(token_ids[start:]), skip_special_tokens=False))
    return "".join(pieces)
