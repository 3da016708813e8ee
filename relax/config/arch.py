"""Which architecture a config means: the model folder's where there is one, else `model.arch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from relax.config.hf_arch import arch_from_hf_config
from relax.config.schema import ArchConfig, ModelConfig


def read_hf_config(folder: str | Path) -> dict[str, Any] | None:
    """`config.json` of a model folder, or None when it is absent.

    Raises:
        ValueError: the file is not a JSON object.
    """
    path = Path(folder).expanduser() / "config.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def effective_arch(config: ModelConfig) -> ArchConfig | None:
    """The architecture that will run, or None when neither a folder nor `model.arch` tells.

    Raises:
        ValueError: the folder holds a model that Relax cannot build.
    """
    hf_config = read_hf_config(config.source) if config.source else None
    return arch_from_hf_config(hf_config) if hf_config is not None else config.arch
