"""Work and memory of one rollout, estimated from dimensions. Estimates say so; nothing here is measured."""

from __future__ import annotations

from typing import Any

from relax.config.flops import TRAINING_FACTOR, forward_flops, num_parameters
from relax.config.resolve import needs_reference
from relax.config.schema import ArchConfig, DType, OldPolicy, Recompute, RunConfig

BYTES = {DType.fp32: 4, DType.bf16: 2}
"""Bytes of a weight."""

ACTIVATION_BYTES_PER_HIDDEN = 34
"""Bytes of activations a token, layer and hidden unit in 16-bit without recomputation (Korthikanti et al. 2022,
arXiv:2205.05198, table 2, attention scores left out)."""


def phase_work(arch: ArchConfig, config: RunConfig) -> list[dict[str, Any]]:
    """Tokens, FLOPs and bytes of each phase of one rollout, at the longest responses the config allows."""
    rollout = config.rollout
    samples = rollout.batch_size * rollout.n_samples_per_prompt
    prompt, response = config.data.max_prompt_len or 0, rollout.max_response_len
    length = prompt + response
    forward = forward_flops(arch, [length]) * samples
    phases = [{"phase": "rollout", "tokens": samples * response, "flops": forward, "bytes": 0}]
    if config.algorithm.old_policy is OldPolicy.trainer and not config.perf.reuse_log_probs:
        phases.append({"phase": "log_probs", "tokens": samples * length, "flops": forward, "bytes": 0})
    if needs_reference(config):
        phases.append({"phase": "ref_log_probs", "tokens": samples * length, "flops": forward, "bytes": 0})
    training = TRAINING_FACTOR * forward
    phases.append({"phase": "actor_train", "tokens": samples * length, "flops": training, "bytes": 0})
    published = num_parameters(arch) * BYTES[config.model.dtype] / config.perf.publish_interval
    phases.append({"phase": "update_weights", "tokens": 0, "flops": 0.0, "bytes": published})
    return phases


def memory_estimate(arch: ArchConfig, config: RunConfig) -> dict[str, float]:
    """Bytes of one trainer rank: weights, fp32 gradients, optimizer state, reference, activations of a micro-batch."""
    p = config.parallelism
    shard = num_parameters(arch) / (p.tensor * p.pipeline)
    weight = BYTES[config.model.dtype]
    # fp32 runs update the weights themselves; bf16 keeps fp32 masters
    state = 8 + (4 if config.model.dtype is DType.bf16 else 0)
    optimizer = shard * state / ((p.data or 1) if p.distributed_optimizer else 1)
    tokens = config.train.max_tokens_per_gpu
    layer = arch.hidden_size * ACTIVATION_BYTES_PER_HIDDEN * weight / 2
    # full recomputation keeps every layer's input and the activations of one layer
    recomputed = arch.num_layers * arch.hidden_size * weight + layer
    per_token = recomputed if config.train.recompute is Recompute.full else arch.num_layers * layer
    estimate = {
        "weights": shard * weight,
        "gradients": shard * 4,
        "optimizer state": optimizer,
        "reference": shard * weight if needs_reference(config) else 0.0,
        "activations": tokens * per_token / p.tensor,
        "logits": float(tokens * arch.vocab_size * 4 / p.tensor),
    }
    return {**estimate, "total": sum(estimate.values())}
