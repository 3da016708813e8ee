"""The arguments of an SGLang server, from the config."""

from __future__ import annotations

from typing import Any

from relax.config.megatron_args import TORCH_DTYPE_NAMES
from relax.config.schema import RunConfig


def sglang_server_arguments(config: RunConfig) -> dict[str, Any]:
    """Server arguments by SGLang's names: what Relax derives, then what `rollout.sglang` sets."""
    rollout = config.rollout
    derived = {
        "model_path": config.model.source,
        "dtype": TORCH_DTYPE_NAMES[config.model.dtype],
        "tp_size": rollout.num_gpus_per_engine,
        "skip_tokenizer_init": True,
        "random_seed": config.seed,
        "enable_memory_saver": bool(config.mode.offload),
        "device": "cuda" if config.launcher.num_gpus > 0 else "cpu",
    }
    return {**derived, **rollout.sglang}
