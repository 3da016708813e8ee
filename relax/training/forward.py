"""Forward and backward passes over packed micro-batches through Megatron's schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel import get_forward_backward_func

from relax.config.schema import ArchConfig
from relax.data.micro_batches import PackedMicroBatch
from relax.training.attention import PackedSequences, length_blocks
from relax.training.log_probs import vocab_parallel_log_probs
from relax.training.model import RotaryTable

Metrics = dict[str, torch.Tensor]
MicroBatchLoss = Callable[[PackedMicroBatch, torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, Metrics]]
"""(micro-batch, log-probs [R], entropy [R] or None) → (Σ w·l with graph, metrics that add up)."""


@dataclass(frozen=True)
class PolicyForward:
    """A model that turns packed micro-batches into log-probs of their response tokens."""

    model: DistributedDataParallel
    rotary: RotaryTable
    arch: ArchConfig
    temperature: float

    def logits(self, micro_batch: PackedMicroBatch) -> torch.Tensor:
        """[1, T, V / tp] vocabulary-parallel logits."""
        device = micro_batch.input_ids.device
        cos, sin = self.rotary(micro_batch.position_ids[0])
        blocks, order = length_blocks(micro_batch.lengths, device)
        packed = PackedSequences(qkv_format="thd", cos=cos, sin=sin, blocks=blocks, order=order)
        return self.model(micro_batch.input_ids, micro_batch.position_ids, None, packed_seq_params=packed)

    def response_log_probs(
        self, logits: torch.Tensor, micro_batch: PackedMicroBatch, *, entropy: bool, temperature: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[R] log-probs (and entropy) of the response tokens; prompt positions cost no softmax."""
        return vocab_parallel_log_probs(
            logits[0].index_select(0, micro_batch.response_positions),
            micro_batch.targets,
            temperature=self.temperature if temperature is None else temperature,
            vocab_size=self.arch.vocab_size,
            entropy=entropy,
        )


def _schedule(
    forward: PolicyForward, step: Callable[..., Any], micro_batches: Sequence[PackedMicroBatch], **options: Any
) -> Any:
    return get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iter(micro_batches),
        model=[forward.model],
        num_microbatches=len(micro_batches),
        seq_length=micro_batches[0].input_ids.shape[1],
        micro_batch_size=1,
        **options,
    )


def score_micro_batches(forward: PolicyForward, micro_batches: Sequence[PackedMicroBatch]) -> list[torch.Tensor]:
    """[R] log-probs of each micro-batch, without a graph."""

    def step(data: Iterator[PackedMicroBatch], model: Any) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
        micro_batch = next(data)
        logits = forward.logits(micro_batch)

        def collect(output: torch.Tensor, non_loss_data: bool = True) -> torch.Tensor:
            return forward.response_log_probs(output, micro_batch, entropy=False)[0]

        return logits, collect

    with torch.no_grad():
        return _schedule(forward, step, micro_batches, forward_only=True, collect_non_loss_data=True)


def train_micro_batches(
    forward: PolicyForward,
    micro_batches: Sequence[PackedMicroBatch],
    loss: MicroBatchLoss,
    *,
    temperature: float | None = None,
    entropy: bool = True,
    entropy_graph: bool = False,
) -> Metrics:
    """Accumulate gradients of Σ loss over the micro-batches of all data-parallel ranks; returns this rank's metrics.

    Args:
        forward: the model.
        micro_batches: this rank's share; the same number on every rank.
        loss: sum over a micro-batch with weights that were normalised over the whole global batch.
        temperature: of the log-probs; the forward's own when absent.
        entropy: compute the entropy.
        entropy_graph: keep its graph (it has a coefficient).
    """
    # Megatron averages over micro-batches and data-parallel ranks; our losses are sums
    scale = float(len(micro_batches) * parallel_state.get_data_parallel_world_size())

    def step(data: Iterator[PackedMicroBatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        micro_batch = next(data)
        logits = forward.logits(micro_batch)

        def loss_func(output: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
            log_probs, values = forward.response_log_probs(
                output, micro_batch, entropy=entropy, temperature=temperature
            )
            if values is not None and not entropy_graph:
                values = values.detach()
            value, metrics = loss(micro_batch, log_probs, values)
            return value * scale, metrics

        return logits, loss_func

    collected: list[Metrics] = _schedule(forward, step, micro_batches, forward_only=False)
    return {name: torch.stack([item[name] for item in collected]).sum() for name in collected[0]}
