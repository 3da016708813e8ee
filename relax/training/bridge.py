"""The weight bridge: Hugging Face folders and names on one side, Megatron's sharded parameters on the other."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from safetensors.torch import save_file

from relax.config.schema import ArchConfig
from relax.data.model_folder import MARKER
from relax.data.weights import WeightBucket
from relax.training.bridge_layout import ParameterMap, from_shards, parameter_maps, to_shard

INDEX_FILE = "model.safetensors.index.json"
NOT_COPIED = (INDEX_FILE, MARKER)
"""Files of the source folder that would be untrue beside other weights."""
MAX_FILE_BYTES = 4 * 2**30
"""Size at which a saved model is split into several files."""


class WeightBridge:
    """Moves weights between a Megatron module and Hugging Face names. Calls with gathers are collective over TP."""

    def __init__(self, module: torch.nn.Module, arch: ArchConfig) -> None:
        self._arch = arch
        self._parameters = dict(module.named_parameters())
        self._maps = list(parameter_maps(arch))
        expected = {item.megatron_name for item in self._maps}
        if expected != set(self._parameters):
            raise ValueError(f"bridge and model disagree on {sorted(expected ^ set(self._parameters))[:6]}")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Fill the module from `*.safetensors` in `folder`, one tensor at a time.

        Raises:
            ValueError: a tensor is missing or has another shape.
        """
        read = _SafetensorsReader(folder)
        rank = parallel_state.get_tensor_model_parallel_rank()
        size = parallel_state.get_tensor_model_parallel_world_size()
        for item in self._maps:
            parameter = self._parameters[item.megatron_name]
            shard = to_shard([read(name) for name in item.hf_names], item.layout, self._arch, rank=rank, size=size)
            if shard.shape != parameter.shape:
                raise ValueError(
                    f"{folder}: {', '.join(item.hf_names)} give shape {tuple(shard.shape)}, "
                    f"{item.megatron_name} has {tuple(parameter.shape)}: config.json and weights disagree"
                )
            parameter.copy_(shard)

    def export(
        self, value: Callable[[torch.nn.Parameter], torch.Tensor] = lambda parameter: parameter.detach()
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors by Hugging Face name, one Megatron parameter at a time.

        Args:
            value: what to export of a parameter; its data by default.
        """
        for item in self._maps:
            shards = self._gather(value(self._parameters[item.megatron_name]), item)
            yield from zip(item.hf_names, from_shards(shards, item.layout, self._arch))

    def export_gradients(self) -> dict[str, torch.Tensor]:
        """Megatron's accumulated gradients under Hugging Face names (fp32)."""
        return {name: tensor.clone() for name, tensor in self.export(lambda p: p.main_grad)}  # type: ignore[attr-defined]

    def export_buckets(self, bucket_bytes: int) -> Iterator[WeightBucket]:
        """The weights in flat buckets of about `bucket_bytes` each, on the host."""
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        filled = 0
        for name, tensor in self.export():
            if tensors and filled + tensor.nbytes > bucket_bytes:
                yield _flatten(names, tensors)
                names, tensors, filled = [], [], 0
            names.append(name)
            tensors.append(tensor)
            filled += tensor.nbytes
        yield _flatten(names, tensors)

    def save(self, folder: Path, *, source: Path) -> None:
        """Write a Hugging Face folder that transformers loads: weights of now, config and tokenizer of `source`.

        Collective; rank 0 writes, into a temporary folder that is renamed at the end.
        """
        writer = _FolderWriter(folder, source) if dist.get_rank() == 0 else None
        for name, tensor in self.export():
            if writer is not None:
                writer.add(name, tensor)
        if writer is not None:
            writer.finish()

    def _gather(self, shard: torch.Tensor, item: ParameterMap) -> list[torch.Tensor]:
        size = parallel_state.get_tensor_model_parallel_world_size()
        if size == 1 or item.layout.value == "replicated":
            return [shard]
        shards = [torch.empty_like(shard) for _ in range(size)]
        dist.all_gather(shards, shard.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
        return shards


class _SafetensorsReader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, str] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as handle:
                self._files |= dict.fromkeys(handle.keys(), path.name)

    def __call__(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise ValueError(f"{self._folder}: no tensor {name!r} in its *.safetensors files")
        with safe_open(self._folder / self._files[name], framework="pt") as handle:
            return handle.get_tensor(name)


class _FolderWriter:
    """Writes safetensors files as tensors arrive, then the rest of the folder."""

    def __init__(self, folder: Path, source: Path) -> None:
        self._folder, self._source = folder, source
        self._partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)
        self._pending: dict[str, torch.Tensor] = {}
        self._index: dict[str, str] = {}
        self._total_bytes = 0
        self._dtype_name = ""

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._pending[name] = tensor.detach().to("cpu", copy=True).contiguous()
        self._total_bytes += tensor.nbytes
        self._dtype_name = _dtype_name(tensor)
        if sum(t.nbytes for t in self._pending.values()) >= MAX_FILE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            file_name = f"model-{len(set(self._index.values())) + 1:05d}.safetensors"
            save_file(self._pending, self._partial / file_name, metadata={"format": "pt"})
            self._index |= dict.fromkeys(self._pending, file_name)
            self._pending = {}

    def finish(self) -> None:
        self._flush()
        files = sorted(set(self._index.values()))
        if len(files) == 1:
            (self._partial / files[0]).rename(self._partial / "model.safetensors")
        else:
            index = {"metadata": {"total_size": self._total_bytes}, "weight_map": self._index}
            (self._partial / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
        for path in self._source.iterdir():
            if path.is_file() and path.suffix in (".json", ".txt", ".jinja", ".model") and path.name not in NOT_COPIED:
                shutil.copyfile(path, self._partial / path.name)
        self._write_config()
        if self._folder.exists():
            shutil.rmtree(self._folder)
        os.replace(self._partial, self._folder)

    def _write_config(self) -> None:
        """The source's config with the dtype of the weights that lie beside it: readers load in the dtype it names."""
        config = json.loads((self._source / "config.json").read_text(encoding="utf-8"))
        # transformers 4 wrote `torch_dtype`
        names = [name for name in ("dtype", "torch_dtype") if name in config] or ["dtype"]
        config |= dict.fromkeys(names, self._dtype_name)
        (self._partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _flatten(names: list[str], tensors: list[torch.Tensor]) -> WeightBucket:
    flat = [tensor.contiguous().view(-1).view(torch.uint8).cpu() for tensor in tensors]
    return WeightBucket(
        names=names,
        shapes=[tuple(tensor.shape) for tensor in tensors],
        dtypes=[_dtype_name(tensor) for tensor in tensors],
        data=np.asarray(torch.cat(flat).numpy()),
    )
