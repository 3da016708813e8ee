from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

from relax.config.megatron_args import (
    ddp_config_args,
    optimizer_config_args,
    padded_vocab_size,
    transformer_config_args,
)
from relax.config.schema import ArchConfig, DType, ModelFamily, Recompute, RunConfig


def run_config(**changes: Any) -> RunConfig:
    config = RunConfig()
    config.train.recompute = changes.get("recompute", Recompute.none)
    config.model.dtype = changes.get("dtype", DType.fp32)
    return config


def args_of(target: type, config: RunConfig) -> dict[str, Any]:
    if target is TransformerConfig:
        return transformer_config_args(ArchConfig(), config)
    return ddp_config_args(config) if target is DistributedDataParallelConfig else optimizer_config_args(config, lr=1.0)


@pytest.mark.parametrize("target", [TransformerConfig, DistributedDataParallelConfig, OptimizerConfig])
@pytest.mark.parametrize("recompute", list(Recompute))
def test_every_argument_exists_in_the_installed_megatron(target: type, recompute: Recompute) -> None:
    accepted = {item.name for item in dataclasses.fields(target)} & set(inspect.signature(target).parameters)
    assert set(args_of(target, run_config(recompute=recompute))) <= accepted


@pytest.mark.parametrize("dtype", list(DType))
def test_arguments_are_plain_values(dtype: DType) -> None:
    config = run_config(dtype=dtype, recompute=Recompute.full)
    for target in (TransformerConfig, DistributedDataParallelConfig, OptimizerConfig):
        args = args_of(target, config)
        assert json.loads(json.dumps(args)) == args


@pytest.mark.parametrize(
    ("family", "bias", "norm"),
    [(ModelFamily.qwen3, False, True), (ModelFamily.qwen2, True, False), (ModelFamily.llama, False, False)],
)
def test_family_decides_biases_and_head_norms(family: ModelFamily, bias: bool, norm: bool) -> None:
    args = transformer_config_args(ArchConfig(family=family), RunConfig())
    assert (args["add_qkv_bias"], args["qk_layernorm"], args["add_bias_linear"]) == (bias, norm, False)


def test_dimensions_and_degrees_go_where_they_belong() -> None:
    arch = ArchConfig(num_layers=3, num_kv_heads=2, num_attention_heads=6, head_dim=8)
    config = run_config(dtype=DType.bf16)
    config.parallelism.tensor, config.parallelism.sequence_parallel = 2, True
    args = transformer_config_args(arch, config)
    assert (args["num_layers"], args["num_query_groups"], args["num_attention_heads"]) == (3, 2, 6)
    assert (args["kv_channels"], args["tensor_model_parallel_size"], args["sequence_parallel"]) == (8, 2, True)
    assert (args["params_dtype"], args["bf16"]) == ("bfloat16", True)
    assert (args["hidden_dropout"], args["attention_dropout"]) == (0.0, 0.0)


def test_optimizer_floor_never_exceeds_its_rate() -> None:
    config = RunConfig()
    config.train.lr_schedule.min_lr = 1e-4
    assert optimizer_config_args(config, lr=1e-5)["min_lr"] == 1e-5
    assert optimizer_config_args(config, lr=1e-3)["min_lr"] == 1e-4


@pytest.mark.parametrize(("vocab", "tensor", "rows"), [(32, 1, 32), (33, 2, 34), (32, 2, 32), (5, 4, 8)])
def test_vocabulary_is_padded_to_a_multiple_of_the_degree(vocab: int, tensor: int, rows: int) -> None:
    assert padded_vocab_size(ArchConfig(vocab_size=vocab), tensor) == rows
