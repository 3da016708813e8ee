from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from relax.config.schema import ArchConfig, DType, ModelConfig, ModelFamily, ModelInit
from relax.data.errors import DataError
from relax.data.model_folder import materialize_model
from relax.data.tokenizer import load_tokenizer

TINY = ModelConfig(init=ModelInit.random, arch=ArchConfig(), charset="0123456789>")


def load(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto").state_dict()


@pytest.mark.parametrize("family", list(ModelFamily))
def test_random_folder_is_complete_and_has_the_arch(family: ModelFamily, tmp_path: Path) -> None:
    arch = ArchConfig(family=family, num_layers=1)
    folder = materialize_model(dataclasses.replace(TINY, arch=arch), seed=0, folder=tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(str(folder))
    config = model.config
    assert config.model_type == family.value
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size, config.head_dim) == (1, 64, 32, 16)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    assert config.tie_word_embeddings
    assert config.rope_parameters["rope_theta"] == arch.rope_theta
    assert load_tokenizer(folder)("1>")["input_ids"] == [1, 4, 13]
    assert [p.name for p in tmp_path.iterdir()] == ["m"]  # no temporary folder is left


def test_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    a = load(materialize_model(TINY, seed=1, folder=tmp_path / "a"))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(456)
    b = load(materialize_model(TINY, seed=1, folder=tmp_path / "b"))
    c = load(materialize_model(TINY, seed=2, folder=tmp_path / "c"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["model.embed_tokens.weight"], c["model.embed_tokens.weight"])


def test_bf16_weights_are_the_fp32_ones_rounded(tmp_path: Path) -> None:
    full = load(materialize_model(TINY, seed=0, folder=tmp_path / "full"))
    half = load(materialize_model(dataclasses.replace(TINY, dtype=DType.bf16), seed=0, folder=tmp_path / "half"))
    assert all(half[n].dtype is torch.bfloat16 and torch.equal(full[n].bfloat16(), half[n]) for n in full)


def test_folder_is_used_again_for_the_same_model_only(tmp_path: Path) -> None:
    folder = materialize_model(TINY, seed=0, folder=tmp_path / "m")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert materialize_model(TINY, seed=0, folder=folder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(DataError, match="not made from this model and seed"):
        materialize_model(TINY, seed=1, folder=folder)


def test_random_init_of_a_source_takes_its_config_and_tokenizer(tmp_path: Path) -> None:
    source = materialize_model(TINY, seed=0, folder=tmp_path / "source")
    config = ModelConfig(init=ModelInit.random, source=str(source))
    folder = materialize_model(config, seed=5, folder=tmp_path / "copy")
    assert load(folder).keys() == load(source).keys()
    assert not torch.equal(load(folder)["model.embed_tokens.weight"], load(source)["model.embed_tokens.weight"])
    assert load_tokenizer(folder)("12>")["input_ids"] == load_tokenizer(source)("12>")["input_ids"]


def test_pretrained_returns_the_source_or_says_what_is_missing(tmp_path: Path) -> None:
    source = materialize_model(TINY, seed=0, folder=tmp_path / "source")
    config = ModelConfig(init=ModelInit.pretrained, source=str(source))
    assert materialize_model(config, seed=0, folder=tmp_path / "unused") == source
    (source / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"no \*\.safetensors"):
        materialize_model(config, seed=0, folder=tmp_path / "unused")
    (source / "config.json").unlink()
    with pytest.raises(DataError, match=r"no config\.json"):
        materialize_model(config, seed=0, folder=tmp_path / "unused")
    with pytest.raises(DataError, match=r"model\.source='/nowhere' is not a folder"):
        materialize_model(dataclasses.replace(config, source="/nowhere"), seed=0, folder=tmp_path / "unused")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"charset": None}, r"needs model\.charset"),
        ({"arch": None}, r"needs model\.arch"),
        ({"charset": "".join(map(chr, range(200, 240)))}, r"vocab_size=32"),
        ({"init": ModelInit.pretrained}, r"needs model\.source"),
    ],
)
def test_incomplete_model_config_is_refused(change: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        materialize_model(dataclasses.replace(TINY, **change), seed=0, folder=tmp_path / "m")
    assert not (tmp_path / "m").exists()
