"""The trainer's process groups: torch.distributed and Megatron's parallel state, with finite time-outs."""

from __future__ import annotations

import math
from datetime import timedelta

import torch
import torch.distributed as dist

from relax.config.schema import ParallelismConfig


def initialize(
    config: ParallelismConfig, *, rank: int, world_size: int, init_method: str, device: torch.device
) -> None:
    """Join the process group and build Megatron's groups over it.

    Args:
        config: degrees and the collective time-out.
        rank: this process.
        world_size: tensor × pipeline × context × data.
        init_method: `tcp://host:port` of rank 0.
        device: `cpu` (gloo) or a CUDA device (NCCL).
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random as tensor_parallel_random

    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=config.timeout_seconds),
        device_id=device if device.type == "cuda" else None,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor,
        pipeline_model_parallel_size=config.pipeline,
        context_parallel_size=config.context,
        # Megatron's own groups would default to half an hour
        distributed_timeout_minutes=math.ceil(config.timeout_seconds / 60),
    )
    if device.type == "cuda":
        tensor_parallel_random.model_parallel_cuda_manual_seed(0)
    else:
        # the tracker that does nothing: right because no supported model has dropout
        tensor_parallel_random.initialize_rng_tracker(inference_rng_tracker=True)


def shutdown() -> None:
    """Leave all groups; safe to call twice."""
    from megatron.core import parallel_state

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
