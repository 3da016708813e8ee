"""Megatron-core on a machine without CUDA: the one place for everything that takes.

Megatron names the device "cuda" in its own code. An import hook rewrites that in the syntax tree of `megatron.core.*`
as the modules load; torch and all other packages stay untouched, and line numbers stay right. With CUDA present
`install_cpu_compat` does nothing.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.metadata
import logging
import os
import re
import sys
import types
from collections.abc import Sequence

logger = logging.getLogger(__name__)

TESTED_MEGATRON_VERSIONS = ("0.16.1",)
"""Versions of megatron-core this layer was tested with."""

_CALLS = {
    "torch.cuda.get_rng_state": "torch.get_rng_state",
    "torch.cuda.manual_seed": "torch.manual_seed",
    "torch.cuda.current_stream": "torch.cpu.current_stream",
}
# the RNG tracker (dropout, recomputation) works on the CPU generator instead
_APPENDIX = {
    "megatron.core.tensor_parallel.random": (
        "\n_get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()"
        "\n_set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)\n"
    )
}
_TENSOR_TYPE = re.compile(r"torch\.cuda\.(\w+Tensor)")


class _CudaToCpu(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return node
        name = ast.unparse(node.func)
        if name == "torch.cuda.current_device":
            return ast.copy_location(ast.Constant("cpu"), node)
        if name == "torch.cuda.synchronize":
            return ast.copy_location(ast.Constant(None), node)
        if name in _CALLS:
            node.func = ast.copy_location(ast.parse(_CALLS[name], mode="eval").body, node.func)
        elif node.func.attr == "cuda":
            node.func.attr, node.args, node.keywords = "cpu", [], []
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        if node.arg == "device" and isinstance(node.value, ast.Constant) and node.value.value == "cuda":
            node.value = ast.copy_location(ast.Constant("cpu"), node.value)
        elif node.arg == "device_ids":
            node.value = ast.copy_location(ast.Constant(None), node.value)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        match = _TENSOR_TYPE.fullmatch(node.value) if isinstance(node.value, str) else None
        return ast.copy_location(ast.Constant(f"torch.{match[1]}"), node) if match else node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType | None:
        """Compile from the rewritten tree; never from a cached .pyc, which holds the original."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        if b"cuda" not in source:
            return super().get_code(fullname)
        source += _APPENDIX.get(fullname, "").encode()
        tree = ast.fix_missing_locations(_CudaToCpu().visit(ast.parse(source, path)))
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("megatron.core"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install_cpu_compat() -> bool:
    """Install the import hook; True when it is needed (no CUDA). Call it before the first `import megatron.core`.

    Raises:
        RuntimeError: megatron.core is loaded already, without the hook.
    """
    import torch

    if torch.cuda.is_available():
        return False
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return True
    if any(name.startswith("megatron.core") for name in sys.modules):
        raise RuntimeError("install_cpu_compat() must run before megatron.core is imported")
    version = importlib.metadata.version("megatron-core")
    if version not in TESTED_MEGATRON_VERSIONS:
        logger.warning("megatron-core %s on CPU: tested with %s only", version, ", ".join(TESTED_MEGATRON_VERSIONS))
    # Megatron's jit_fuser is torch.compile, which costs seconds and gains nothing on tiny CPU models
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    sys.meta_path.insert(0, _Finder())
    return True
