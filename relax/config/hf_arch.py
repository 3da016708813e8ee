"""Between a Hugging Face `config.json` and `ArchConfig`. Plain dictionaries: no torch, no transformers."""

from __future__ import annotations

from typing import Any

from relax.config.schema import ArchConfig, ModelFamily

DEFAULT_ROPE_THETA = 10_000.0
"""transformers' base where a config names none."""

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")
"""Scalings whose frequencies do not depend on the sequence's length."""

_REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
_ARCHITECTURES = {
    ModelFamily.qwen3: "Qwen3ForCausalLM",
    ModelFamily.qwen2: "Qwen2ForCausalLM",
    ModelFamily.llama: "LlamaForCausalLM",
}


def has_qkv_bias(arch: ArchConfig) -> bool:
    """Whether the q, k and v projections have a bias (Qwen2 and Qwen2.5)."""
    return arch.family is ModelFamily.qwen2


def has_qk_norm(arch: ArchConfig) -> bool:
    """Whether queries and keys pass an RMS norm a head (Qwen3)."""
    return arch.family is ModelFamily.qwen3


def arch_from_hf_config(config: dict[str, Any]) -> ArchConfig:
    """Dimensions of a model folder.

    Args:
        config: content of config.json (transformers 4 or 5).

    Raises:
        ValueError: another architecture, or a feature Relax does not build.
    """
    model_type = config.get("model_type")
    families = {family.value: family for family in ModelFamily}
    if model_type not in families:
        raise ValueError(f"model_type={model_type!r} is not one of {', '.join(families)}")
    if config.get("use_sliding_window") and config.get("sliding_window"):
        raise ValueError("use_sliding_window=true: sliding-window attention is not supported")
    if config.get("attention_bias") and model_type != "qwen2":
        raise ValueError(f"attention_bias=true is not supported for {model_type}")
    if config.get("mlp_bias"):
        raise ValueError("mlp_bias=true is not supported")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act={config['hidden_act']!r}: only silu is supported")
    if config.get("quantization_config"):
        raise ValueError("quantization_config is set: quantized weights are not supported")
    missing = [name for name in _REQUIRED if config.get(name) is None]
    if missing:
        raise ValueError(f"config.json of model_type={model_type!r} has no {', '.join(missing)}")
    # transformers 5 keeps base and scaling together; before it they were two keys
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(rope.pop("rope_theta", config.get("rope_theta", DEFAULT_ROPE_THETA)))
    rope_type = rope.pop("rope_type", rope.pop("type", "default"))
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise ValueError(f"rope_type={rope_type!r} is not one of {', '.join(SUPPORTED_ROPE_TYPES)}")
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1):
        raise ValueError(f"partial_rotary_factor={partial}: only whole heads are rotated")
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    return ArchConfig(
        family=families[model_type],
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        ffn_hidden_size=int(config["intermediate_size"]),
        num_attention_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config["max_position_embeddings"]),
        rope_theta=theta,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_scaling={} if rope_type == "default" else {"rope_type": rope_type, **rope},
    )


def hf_config_dict(arch: ArchConfig) -> dict[str, Any]:
    """`config.json` (transformers 5) of a model with these dimensions; token ids and dtype are added by the caller."""
    return {
        "architectures": [_ARCHITECTURES[arch.family]],
        "model_type": arch.family.value,
        "hidden_act": "silu",
        "num_hidden_layers": arch.num_layers,
        "hidden_size": arch.hidden_size,
        "intermediate_size": arch.ffn_hidden_size,
        "num_attention_heads": arch.num_attention_heads,
        "num_key_value_heads": arch.num_kv_heads,
        "head_dim": arch.head_dim,
        "vocab_size": arch.vocab_size,
        "max_position_embeddings": arch.max_position_embeddings,
        "rms_norm_eps": arch.norm_eps,
        "tie_word_embeddings": arch.tie_embeddings,
        "rope_parameters": {"rope_theta": arch.rope_theta, "rope_type": "default", **arch.rope_scaling},
    }
