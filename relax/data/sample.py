"""`Sample`: the one record that flows from a dataset row to the ledger. Knows nothing of engines or trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Messages = list[dict[str, str]]


class SampleStatus(Enum):
    """`pending` → one of the others, set by the engine that generated the sample."""

    pending = "pending"
    completed = "completed"
    truncated = "truncated"
    aborted = "aborted"
    failed = "failed"


@dataclass
class Sample:
    """One prompt and (after generation) one response.

    Per-token fields all have the length of `response_token_ids`. `index` is unique in a run; samples of one prompt
    share `group_index`.
    """

    index: int
    group_index: int
    rollout_id: int
    prompt: str | Messages
    prompt_token_ids: list[int]
    label: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    response: str = ""
    response_token_ids: list[int] = field(default_factory=list)
    rollout_log_probs: list[float] = field(default_factory=list)
    """Engine log-probs at the sampling temperature."""
    loss_mask: list[int] = field(default_factory=list)
    """1 for tokens that the model wrote, 0 for tokens it was given."""
    weight_versions: list[int] = field(default_factory=list)
    """Policy version that produced each token."""
    reward: float | None = None
    """Total reward."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Named parts whose weighted sum is `reward`."""
    feedback: str | None = None
    """Text the environment gave back."""
    status: SampleStatus = SampleStatus.pending

    def validate(self) -> None:
        """Raise ValueError when per-token fields disagree in length or the response is empty."""
        num_tokens = len(self.response_token_ids)
        if num_tokens == 0:
            raise ValueError(f"sample {self.index}: empty response (an engine always gives at least a stop token)")
        for name in ("rollout_log_probs", "loss_mask", "weight_versions"):
            length = len(getattr(self, name))
            if length != num_tokens:
                raise ValueError(f"sample {self.index}: {name} has {length} entries for {num_tokens} response tokens")
