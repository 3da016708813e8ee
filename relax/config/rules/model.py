"""Rules on the model: there is one, it fits its folder, and Relax can build it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from relax.config.arch import effective_arch, read_hf_config
from relax.config.rules.base import Finding, Scope, rule
from relax.config.rules.helpers import arch_or_none
from relax.config.schema import ModelInit, RunConfig


@rule("model.origin", "model.source", "model.arch", "model.init", "model.charset")
def origin(config: RunConfig) -> Iterator[Finding]:
    """Something tells the weights, the dimensions and the tokenizer."""
    model = config.model
    if model.init is ModelInit.pretrained and model.source is None:
        yield Finding(
            "model.source",
            "null",
            "a Hugging Face model folder",
            "init=pretrained loads its weights from there",
            "model.source=FOLDER (or model.init=random with model.arch)",
        )
    if model.init is ModelInit.random and model.source is None and model.arch is None:
        yield Finding(
            "model.arch",
            "null",
            "the model's dimensions",
            "without a folder nothing else tells them",
            "model=tiny_qwen3 (or another model option with dimensions)",
        )
    if model.init is ModelInit.random and model.source is None and model.charset is None:
        yield Finding(
            "model.charset",
            "null",
            "the characters of the vocabulary",
            "without a folder there is no tokenizer",
            "model.charset='0123456789' (or model.source=FOLDER)",
        )
    if model.charset is not None and model.arch is not None and model.source is None:
        needed = len(model.charset) + 3
        if len(set(model.charset)) != len(model.charset):
            yield Finding(
                "model.charset",
                model.charset,
                "no character twice",
                "each character is one token",
                f"model.charset='{''.join(dict.fromkeys(model.charset))}'",
            )
        if model.arch.vocab_size < needed:
            yield Finding(
                "model.arch.vocab_size",
                model.arch.vocab_size,
                f"at least {needed}",
                "the vocabulary holds 3 special tokens and one a character",
                f"model.arch.vocab_size={needed}",
            )


@rule("model.folder", "model.source", scope=Scope.files)
def folder(config: RunConfig) -> Iterator[Finding]:
    """The model folder exists and holds a model that Relax can build."""
    source = config.model.source
    if source is None:
        return
    path = Path(source).expanduser()
    if not path.is_dir():
        yield Finding(
            "model.source",
            source,
            "an existing folder",
            "weights and tokenizer are read from it",
            "model.source=FOLDER (or paths.model_dir=PARENT; python -m relax.data.prepare smollm2 makes a small one)",
        )
        return
    try:
        found = read_hf_config(path)
        arch = effective_arch(config.model)
    except ValueError as error:
        yield Finding("model.source", source, "a dense Qwen3, Qwen2 or Llama model", str(error), "model.source=FOLDER")
        return
    if found is None:
        yield Finding(
            "model.source",
            source,
            "a folder with config.json",
            "it tells the architecture",
            "model.source=FOLDER (one written by save_pretrained)",
        )
    elif config.model.init is ModelInit.pretrained and not any(path.glob("*.safetensors")):
        yield Finding(
            "model.source",
            source,
            "a folder with *.safetensors",
            "init=pretrained loads them",
            "model.init=random (or convert the weights to safetensors)",
        )
    if config.model.arch is not None and arch is not None and arch != config.model.arch:
        wrong = [
            f"{name}={value} (folder: {vars(arch)[name]})"
            for name, value in vars(config.model.arch).items()
            if vars(arch)[name] != value
        ]
        yield Finding(
            "model.arch",
            ", ".join(wrong),
            f"what {source}/config.json says",
            "the folder's dimensions are what will run",
            "model.arch=null",
        )


@rule("model.dimensions", "model.arch")
def dimensions(config: RunConfig) -> Iterator[Finding]:
    """Dimensions are positive and query heads share key/value heads evenly."""
    arch = arch_or_none(config)
    if arch is None:
        return
    names = (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    )
    bad = [name for name in names if vars(arch)[name] < 1]
    for name in bad:
        yield Finding(
            f"model.arch.{name}", vars(arch)[name], "at least 1", "it is a size of the model", f"model.arch.{name}=1"
        )
    if not bad and arch.num_attention_heads % arch.num_kv_heads:
        yield Finding(
            "model.arch.num_kv_heads",
            arch.num_kv_heads,
            f"a divisor of {arch.num_attention_heads} attention heads",
            "each key/value head serves the same number of query heads",
            f"model.arch.num_kv_heads={arch.num_attention_heads}",
        )
