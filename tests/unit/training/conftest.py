"""Megatron on a machine without CUDA, before any test module imports it."""

from __future__ import annotations

import torch

from relax.training.cpu_compat import install_cpu_compat

torch.set_num_threads(1)
install_cpu_compat()
