from __future__ import annotations

import ast
import subprocess
import sys

import pytest
import torch

from relax.training.cpu_compat import _CudaToCpu, install_cpu_compat


def rewritten(source: str) -> str:
    return ast.unparse(_CudaToCpu().visit(ast.parse(source)))


def test_inert_where_cuda_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    finders: list[object] = []
    monkeypatch.setattr(sys, "meta_path", finders)
    assert install_cpu_compat() is False
    assert finders == []


def test_second_install_adds_no_second_hook() -> None:
    before = list(sys.meta_path)
    assert install_cpu_compat() is True
    assert sys.meta_path == before


def test_refuses_when_megatron_was_imported_without_it() -> None:
    code = (
        "import sys, types; sys.modules['megatron.core'] = types.ModuleType('megatron.core')\n"
        "from relax.training.cpu_compat import install_cpu_compat; install_cpu_compat()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "RuntimeError: install_cpu_compat() must run before megatron.core is imported" in done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.cuda()", "x.cpu()"),
        ("x.cuda(3, non_blocking=True)", "x.cpu()"),
        ("torch.empty(2, device='cuda')", "torch.empty(2, device='cpu')"),
        ("torch.empty(2, device=torch.cuda.current_device())", "torch.empty(2, device='cpu')"),
        ("torch.cuda.synchronize()", "None"),
        ("torch.cuda.manual_seed(s)", "torch.manual_seed(s)"),
        ("barrier(device_ids=[0])", "barrier(device_ids=None)"),
        ("x.type('torch.cuda.FloatTensor')", "x.type('torch.FloatTensor')"),
        ("name = 'cuda'", "name = 'cuda'"),
        ("torch.cuda.is_available()", "torch.cuda.is_available()"),
    ],
)
def test_rewrite_touches_devices_only(before: str, after: str) -> None:
    assert rewritten(before) == after


def test_megatron_modules_name_no_cuda_device_and_torch_is_untouched() -> None:
    import megatron.core.optimizer.clip_grads as module

    assert type(module.__loader__).__module__ == "relax.training.cpu_compat"
    assert type(torch.__loader__).__module__ != "relax.training.cpu_compat"
