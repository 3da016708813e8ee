"""`manifest.json`: what a run was made of, so that it can be repeated. Secrets are redacted."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relax.config.devices import local_gpu_count
from relax.config.schema import RunConfig

PACKAGES = (
    "relax-rl",
    "torch",
    "megatron-core",
    "ray",
    "transformers",
    "datasets",
    "hydra-core",
    "omegaconf",
    "numpy",
    "safetensors",
    "math-verify",
    "reasoning-gym",
    "sglang",
    "wandb",
)
"""Packages whose versions change what a run computes."""

HASHED_BYTES = 64 * 2**20
"""Files up to this size are hashed whole; larger ones by size and their first bytes, and marked so."""

_SECRET = re.compile(r"(?i)(key|token|secret|password|passwd|credential)")
_LONG_SECRET_VALUE = re.compile(r"\b(?:sk|hf|ghp|wandb)[-_][A-Za-z0-9_-]{16,}\b")

_NOT_SECRET = ("prompt_key", "label_key", "metadata_keys", "_tokens_per_gpu")
"""Options of Relax that only sound like secrets."""


def redact(text: str) -> str:
    """`name=value` with a secret-sounding name, and values that look like access keys, lose their value."""
    name, separator, _ = text.partition("=")
    leaf = name.rsplit(".", 1)[-1]
    if separator and _SECRET.search(leaf) and not leaf.endswith(_NOT_SECRET):
        return f"{name}=<redacted>"
    return _LONG_SECRET_VALUE.sub("<redacted>", text)


def build_manifest(config: RunConfig, *, model_dir: Path, command: Sequence[str]) -> dict[str, Any]:
    """Everything a reader needs to repeat the run."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [redact(item) for item in command],
        "code": _code_state(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cpus": os.cpu_count(),
            "gpus": local_gpu_count(),
        },
        "inputs": {str(path): checksum(path) for path in _inputs(config, model_dir)},
    }


def checksum(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file; of the first bytes alone when it is large."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(HASHED_BYTES)).hexdigest()
    return {"bytes": size, "sha256": digest, "hashed_bytes": min(size, HASHED_BYTES)}


def _inputs(config: RunConfig, model_dir: Path) -> list[Path]:
    data = [config.data, *(item.data for item in config.eval.sets.values())]
    files = [Path(item.path).expanduser() for item in data if item.path is not None]
    model = [p for p in sorted(model_dir.iterdir()) if p.suffix in (".json", ".safetensors", ".jinja")]
    return [path for path in dict.fromkeys([*files, *model]) if path.is_file()]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _code_state() -> dict[str, Any]:
    """Commit and dirtiness of the checkout the package runs from; null outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
        return done.stdout.strip()

    return {"commit": git("rev-parse", "HEAD") or None, "dirty": bool(git("status", "--porcelain"))}


def command_line() -> list[str]:
    """The command as it was given."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
