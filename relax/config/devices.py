"""How many GPUs this machine offers, without importing torch or starting CUDA."""

from __future__ import annotations

import os
import re
from pathlib import Path


def local_gpu_count() -> int:
    """NVIDIA device nodes, cut to CUDA_VISIBLE_DEVICES when that is set."""
    nodes = [p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(nodes)
    listed = [item for item in visible.split(",") if item.strip() and item.strip() != "-1"]
    return min(len(nodes), len(listed))
