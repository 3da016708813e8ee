"""`PromptSource`: the rendered prompts of a run and their order. A pure function of (seed, rollout id): no state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relax.config.schema.data import DataConfig
from relax.data.datasets import load_rows
from relax.data.errors import DataError
from relax.data.rendering import PromptRenderer
from relax.data.sample import Messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready for an engine."""

    row: int
    """Position among the kept rows, in file order."""
    prompt: str | Messages
    """Text or messages, with prompt template and system prompt."""
    token_ids: list[int]
    label: str | None
    metadata: dict[str, Any]


@dataclass(frozen=True)
class SourceReport:
    """num_read = num_bad + num_too_long + num_kept."""

    num_read: int
    num_bad: int
    num_too_long: int
    num_kept: int
    max_prompt_tokens: int
    """Longest kept prompt."""
    bad_messages: list[str] = field(default_factory=list)
    """First messages of skipped rows."""


class PromptSource:
    """Prompts of `config`, in a seeded order.

    Epoch e visits every prompt once, in the permutation of (seed, e), or in file order when `config.shuffle` is off.
    Rollout r takes positions r·batch_size … (r+1)·batch_size − 1 of the endless sequence of epochs: batches cross
    epochs without loss or repeat, and a resumed run needs no state.

    Raises (on construction):
        DataError: what `load_rows` and `PromptRenderer` raise, or no prompt is left.
    """

    def __init__(self, config: DataConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> None:
        if config.max_prompt_len is not None and config.max_prompt_len < 1:
            raise DataError(f"data.max_prompt_len={config.max_prompt_len} must be at least 1")
        renderer = PromptRenderer(config, tokenizer)
        rows, read = load_rows(config)
        self._prompts: list[Prompt] = []
        num_too_long = shortest = longest = 0
        for row in rows:
            prompt = renderer.apply_templates(row.prompt)
            ids = renderer.encode(prompt)
            if config.max_prompt_len is not None and len(ids) > config.max_prompt_len:
                num_too_long += 1
                shortest = min(shortest or len(ids), len(ids))
                continue
            longest = max(longest, len(ids))
            self._prompts.append(Prompt(len(self._prompts), prompt, ids, row.label, row.metadata))
        self.report = SourceReport(
            read.num_read, read.num_bad, num_too_long, len(self._prompts), longest, read.bad_messages
        )
        if not self._prompts:
            first = f"; first bad row: {read.bad_messages[0]}" if read.bad_messages else ""
            long = f" (the shortest has {shortest} tokens, data.max_prompt_len={config.max_prompt_len})"
            raise DataError(
                f"no prompt is left of data.path={config.path!r} data.task={config.task!r}: {read.num_read} read, "
                f"{read.num_bad} malformed, {num_too_long} too long{long if num_too_long else ''}{first}"
            )
        self._shuffle = config.shuffle
        self._seed = seed
        self._order_cache: tuple[int, npt.NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Prompts an epoch."""
        return len(self._prompts)

    def __getitem__(self, row: int) -> Prompt:
        """Prompt `row`, in file order."""
        return self._prompts[row]

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """[len] rows in the order in which `epoch` visits them."""
        if not self._shuffle:
            return np.arange(len(self._prompts))
        if self._order_cache[0] != epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, epoch])))
            self._order_cache = (epoch, generator.permutation(len(self._prompts)))
        return self._order_cache[1]

    def batch(self, rollout_id: int, batch_size: int) -> list[Prompt]:
        """The prompts of rollout `rollout_id` (from 0). `batch_size` may exceed the dataset: it then crosses epochs.

        Raises:
            ValueError: a negative rollout id, or a batch size below 1.
        """
        if rollout_id < 0 or batch_size < 1:
            raise ValueError(f"rollout_id={rollout_id} must be >= 0 and rollout.batch_size={batch_size} >= 1")
        first = rollout_id * batch_size
        chosen = []
        for position in range(first, first + batch_size):
            epoch, offset = divmod(position, len(self._prompts))
            chosen.append(self._prompts[int(self.order(epoch)[offset])])
        return chosen
