from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from relax.config.hf_arch import arch_from_hf_config, has_qk_norm, has_qkv_bias, hf_config_dict
from relax.config.schema import ArchConfig, ModelFamily

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ARCHS = [
    ArchConfig(),
    ArchConfig(family=ModelFamily.qwen2, tie_embeddings=False, norm_eps=1e-5, rope_theta=10_000.0),
    ArchConfig(family=ModelFamily.llama, num_kv_heads=4, vocab_size=77, rope_scaling=LLAMA3),
    ArchConfig(family=ModelFamily.llama, rope_scaling={"rope_type": "linear", "factor": 2.0}),
]


@pytest.mark.parametrize("arch", ARCHS)
def test_round_trip_through_a_plain_dictionary(arch: ArchConfig) -> None:
    assert arch_from_hf_config(hf_config_dict(arch)) == arch


@pytest.mark.parametrize("arch", ARCHS)
def test_round_trip_through_transformers(arch: ArchConfig) -> None:
    from relax.data.model_folder import arch_to_hf

    assert arch_from_hf_config(arch_to_hf(arch).to_dict()) == arch


def test_transformers_4_keys_mean_the_same() -> None:
    new = hf_config_dict(ARCHS[2])
    rope = dict(new.pop("rope_parameters"))
    old = new | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    assert arch_from_hf_config(old) == ARCHS[2]
    rope["type"] = rope.pop("rope_type")
    assert arch_from_hf_config(old) == ARCHS[2]


def test_absent_keys_take_transformers_defaults() -> None:
    config = hf_config_dict(ArchConfig(family=ModelFamily.llama, num_attention_heads=4))
    for name in ("num_key_value_heads", "head_dim", "rope_parameters", "tie_word_embeddings", "rms_norm_eps"):
        del config[name]
    arch = arch_from_hf_config(config)
    expected = dataclasses.replace(
        ArchConfig(family=ModelFamily.llama), num_kv_heads=4, head_dim=16, rope_theta=10_000.0, tie_embeddings=False
    )
    assert arch == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2' is not one of qwen3, qwen2, llama"),
        ({"model_type": None}, "model_type=None"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding-window attention is not supported"),
        ({"attention_bias": True}, "attention_bias=true is not supported for qwen3"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, r"partial_rotary_factor=0\.5"),
        ({"partial_rotary_factor": 0.25}, r"partial_rotary_factor=0\.25"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights are not supported"),
        ({"hidden_size": None}, "config.json of model_type='qwen3' has no hidden_size"),
    ],
)
def test_what_relax_cannot_build_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arch_from_hf_config(hf_config_dict(ArchConfig()) | change)


def test_options_that_are_off_are_accepted() -> None:
    config = hf_config_dict(ArchConfig(family=ModelFamily.qwen2))
    off = {"use_sliding_window": False, "sliding_window": 4096, "attention_bias": True, "mlp_bias": False}
    assert arch_from_hf_config(config | off).family is ModelFamily.qwen2


def test_families_differ_in_biases_and_head_norms() -> None:
    archs = [ArchConfig(family=family) for family in (ModelFamily.qwen3, ModelFamily.qwen2, ModelFamily.llama)]
    assert [has_qkv_bias(arch) for arch in archs] == [False, True, False]
    assert [has_qk_norm(arch) for arch in archs] == [True, False, False]
