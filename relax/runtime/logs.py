"""Logs of a run's actors, from every node, into the run directory.

Ray redirects the output of a worker into files of its own node. Each actor says at its start where its files are; at
the end a small task on that node reads their tails.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from relax.runtime.waiting import gather

MAX_LOG_BYTES = 4 * 2**20
"""Most that is kept of one file: its end."""

COLLECT_TIMEOUT_SECONDS = 5.0
"""Longest wait for the logs of all nodes."""


@dataclass(frozen=True)
class LogFiles:
    """Where one actor's output goes."""

    node_id: str
    paths: dict[str, str]
    """Path on that node by stream, `out` and `err`."""


class Logged:
    """An actor that tells where its output goes."""

    def log_files(self) -> LogFiles:
        """Called once the actor is up."""
        streams = {"out": 1, "err": 2}
        paths = {name: os.readlink(f"/proc/self/fd/{number}") for name, number in streams.items()}
        return LogFiles(node_id=ray.get_runtime_context().get_node_id(), paths=paths)


def read_tails(files: dict[str, str]) -> dict[str, str]:
    """The end of each file by key; files that are gone are left out."""
    tails = {}
    for key, path in files.items():
        if os.path.isfile(path):
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - MAX_LOG_BYTES))
                tails[key] = file.read().decode("utf-8", errors="replace")
    return tails


def collect_logs(actors: Mapping[str, LogFiles], folder: Path) -> list[Path]:
    """Write `<folder>/<node>/<actor>.<stream>` for every actor that printed anything; the files written.

    Raises:
        TimeoutError, ray.exceptions.RayError: a node does not answer.
    """
    by_node: dict[str, dict[str, str]] = {}
    for actor, files in actors.items():
        wanted = by_node.setdefault(files.node_id, {})
        wanted |= {f"{actor}.{stream}": path for stream, path in files.paths.items()}
    read = ray.remote(read_tails)
    refs = [
        read.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(files)
        for node_id, files in by_node.items()
    ]
    answers = gather(refs, timeout_seconds=COLLECT_TIMEOUT_SECONDS, what=f"the logs of {len(refs)} nodes")
    written = []
    for index, tails in enumerate(answers):
        for name, text in tails.items():
            path = folder / f"node-{index}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written
