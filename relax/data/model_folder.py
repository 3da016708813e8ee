"""The Hugging Face folder a run starts from: an existing one, or one written with random weights.

Trainer and engines read the same folder, so that both start from the same weights whatever their layout.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax.config.hf_arch import hf_config_dict
from relax.config.schema.enums import DType, ModelInit
from relax.config.schema.model import ArchConfig, ModelConfig
from relax.data.errors import DataError
from relax.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, build_char_tokenizer, load_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

MARKER = "relax_init.json"
"""Written last into a random folder: what it was made from."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """torch's name of a config dtype."""
    import torch

    return {DType.fp32: torch.float32, DType.bf16: torch.bfloat16}[dtype]


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Without transformers' own progress bars, which would tear the run's display."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def materialize_model(config: ModelConfig, *, seed: int, folder: Path) -> Path:
    """A complete Hugging Face folder (config.json, safetensors, tokenizer) for `config`.

    `init=pretrained` returns `config.source` itself. `init=random` writes `folder`: weights drawn by transformers' own
    init in fp32 from `seed`, then cast to `config.dtype`. The folder appears at once (temporary folder, then rename);
    when it is there already and was made from the same config and seed, it is used again.

    Raises:
        DataError: the source is missing or incomplete, neither source nor arch is given, the charset does not fit the
            vocabulary, or `folder` was made from something else.
    """
    if config.init is ModelInit.pretrained:
        return _check_pretrained(config)
    made_from = _made_from(config, seed)
    if folder.exists():
        marker = folder / MARKER
        if marker.is_file() and json.loads(marker.read_text()) == made_from:
            return folder
        raise DataError(f"{str(folder)!r} exists and was not made from this model and seed; remove it")
    hf_config = _hf_config(config)
    tokenizer = _tokenizer(config, vocab_size=hf_config.vocab_size)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _write_random_model(hf_config, dtype=config.dtype, seed=seed, folder=temporary)
        tokenizer.save_pretrained(str(temporary))
        (temporary / MARKER).write_text(json.dumps(made_from, indent=1))
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _made_from(config: ModelConfig, seed: int) -> dict[str, Any]:
    arch = None if config.arch is None else {**dataclasses.asdict(config.arch), "family": config.arch.family.value}
    return {
        "seed": seed,
        "dtype": config.dtype.value,
        "arch": arch,
        "charset": config.charset,
        "source": config.source,
    }


def _check_pretrained(config: ModelConfig) -> Path:
    if config.source is None:
        raise DataError("model.init=pretrained needs model.source (a Hugging Face folder); or set model.init=random")
    source = _source_folder(config.source)
    if not any(source.glob("*.safetensors")):
        raise DataError(
            f"model.source={config.source!r} holds no *.safetensors; save the model with save_pretrained, "
            "or set model.init=random to draw weights for its config"
        )
    return source


def _source_folder(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_dir():
        hint = " (`python -m relax.data.prepare smollm2` writes it)" if "SmolLM2" in path.name else ""
        raise DataError(f"model.source={source!r} is not a folder; it must be a local Hugging Face folder{hint}")
    if not (path / "config.json").is_file():
        raise DataError(f"model.source={source!r} holds no config.json; it must be a complete Hugging Face folder")
    return path


def _hf_config(config: ModelConfig) -> PretrainedConfig:
    from transformers import AutoConfig

    if config.arch is not None:
        return arch_to_hf(config.arch)
    if config.source is None:
        raise DataError("model.init=random needs model.arch (dimensions) or model.source (a folder with config.json)")
    return AutoConfig.from_pretrained(str(_source_folder(config.source)), local_files_only=True)


def arch_to_hf(arch: ArchConfig) -> PretrainedConfig:
    """`arch` as the config class of its family, with the ids of the character tokenizer."""
    from transformers import AutoConfig

    values = hf_config_dict(arch)
    values.update(pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID)
    return AutoConfig.for_model(**values)


def _tokenizer(config: ModelConfig, *, vocab_size: int) -> PreTrainedTokenizerBase:
    if config.charset is not None:
        tokenizer: PreTrainedTokenizerBase = build_char_tokenizer(config.charset)
    elif config.source is not None:
        tokenizer = load_tokenizer(config.source)
    else:
        raise DataError("a model without model.source needs model.charset (the characters of its tokenizer)")
    if len(tokenizer) > vocab_size:
        raise DataError(
            f"the tokenizer has {len(tokenizer)} tokens (model.charset and 3 special ones, or model.source's), but "
            f"model.arch.vocab_size={vocab_size}; raise vocab_size or shorten the charset"
        )
    return tokenizer


def _write_random_model(hf_config: PretrainedConfig, *, dtype: DType, seed: int, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with no_progress_bars(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32)
        model = model.to(torch_dtype(dtype))
        model.config.dtype = torch_dtype(dtype)
        model.save_pretrained(str(folder))
