"""Logs of a run's actors, from every node, into the run directory.

Ray redirects the output of a worker into files of its own node. Each actor says at its start where its files are; at
the end a small task on every node reads the tails of these, and of the actors that died before they could say so.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MAX_LOG_BYTES = 4 * 2**20
"""Most that is kept of one file: its end."""

COLLECT_TIMEOUT_SECONDS = 15.0
"""Longest wait for the logs of all nodes."""

LAST_LINES = 15
"""Lines of a dead actor's output that its error shows."""

_HEADER_BYTES = 256
"""Where Ray writes `:actor_name:CLASS` into a worker's files."""


@dataclass(frozen=True)
class LogFiles:
    """Where one actor's output goes."""

    node_id: str
    paths: dict[str, str]
    """Path on that node by stream, `out` and `err`."""


@dataclass(frozen=True)
class Tail:
    """The end of one file."""

    path: str
    name: str
    text: str


class Logged:
    """An actor that tells where its output goes."""

    def log_files(self) -> LogFiles:
        """Called once the actor is up."""
        streams = {"out": 1, "err": 2}
        paths = {name: os.readlink(f"/proc/self/fd/{number}") for name, number in streams.items()}
        return LogFiles(node_id=ray.get_runtime_context().get_node_id(), paths=paths)


@contextmanager
def collected_logs(folder: Path, *, say: Callable[[str], None]) -> Iterator[dict[str, LogFiles]]:
    """Whatever happens inside, the logs of this run's actors end in `folder`; a failure to collect is only said.

    The mapping gives the actors their names. The error of an actor that died carries the last lines it printed.
    """
    actors: dict[str, LogFiles] = {}
    try:
        yield actors
    except BaseException as error:
        add_last_lines(error, collect_logs(actors, folder, say=say))
        raise
    collect_logs(actors, folder, say=say)


def collect_logs(actors: Mapping[str, LogFiles], folder: Path, *, say: Callable[[str], None]) -> list[Path]:
    """Write `<folder>/node-<i>-<host>/<actor>.<stream>` for every actor of this run; the files written.

    A node that does not answer is said, and left out.
    """
    names = {path: f"{name}.{stream}" for name, files in actors.items() for stream, path in files.paths.items()}
    read = ray.remote(read_tails)
    refs: dict[str, ray.ObjectRef] = {}
    try:
        job_id = ray.get_runtime_context().get_job_id()
        for node in ray.nodes():
            if node["Alive"]:
                own = [
                    path
                    for files in actors.values()
                    if files.node_id == node["NodeID"]
                    for path in files.paths.values()
                ]
                where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                host = f"node-{len(refs)}-{node['NodeManagerHostname']}"
                refs[host] = read.options(num_cpus=0, scheduling_strategy=where).remote(own, names, job_id)
        return _write(_answers(refs, say), folder)
    except (OSError, ray.exceptions.RayError) as error:  # the run's own outcome matters more
        say(f"warning: the actors' logs could not be collected ({error})")
        return []


def _answers(refs: Mapping[str, ray.ObjectRef], say: Callable[[str], None]) -> dict[str, list[Tail]]:
    """What each node read, of those that answered in time."""
    deadline = time.monotonic() + COLLECT_TIMEOUT_SECONDS
    answers = {}
    for host, ref in refs.items():
        try:
            answers[host] = ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.RayError as error:
            say(f"warning: the logs of {host} could not be collected ({type(error).__name__})")
    return answers


def _write(answers: Mapping[str, list[Tail]], folder: Path) -> list[Path]:
    written: dict[str, Path] = {}
    for host, tails in answers.items():
        for tail in tails:
            if tail.path not in written:  # nodes on one machine see each other's files
                path = folder / host / tail.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(tail.text, encoding="utf-8")
                written[tail.path] = path
    return list(written.values())


def read_tails(own: list[str], names: Mapping[str, str], job_id: str) -> list[Tail]:
    """Ends of log files of this node, run as a task there.

    Args:
        own: paths of this node's named actors.
        names: name of every named actor's file, of all nodes.
        job_id: Ray's id of the run; its other actors are named by class and process id.
    """
    folder = Path(os.readlink("/proc/self/fd/1")).parent
    found = {path: names[path] for path in own}
    for path in sorted(folder.glob(f"worker-*-{job_id}-*")):
        if str(path) not in names and (name := _class_and_pid(path)) is not None:
            found[str(path)] = name
    return [Tail(path, name, _tail(path)) for path, name in found.items() if os.path.isfile(path)]


def _class_and_pid(path: Path) -> str | None:
    """`TrainerActor-4711.err` for a file of an actor, None for one of plain tasks."""
    with path.open("rb") as file:
        header = re.search(rb"^:actor_name:(\w+)", file.read(_HEADER_BYTES), re.MULTILINE)
    return None if header is None else f"{header[1].decode()}-{path.stem.rsplit('-', 1)[-1]}{path.suffix}"


def _tail(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - MAX_LOG_BYTES))
        return file.read().decode("utf-8", errors="replace")


def add_last_lines(error: BaseException, logs: list[Path]) -> None:
    """When `error` says that an actor died, note what that actor printed last."""
    if not isinstance(error, ray.exceptions.RayActorError):
        return
    dead = re.search(r"^\s*name: (\S+)", str(error), re.MULTILINE)
    pid = re.search(r"^\s*pid: (\d+)", str(error), re.MULTILINE)
    for path in logs:
        if (dead and path.stem == dead[1]) or (pid and path.stem.endswith(f"-{pid[1]}")):
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(":")]
            if lines:
                error.add_note("\n".join([f"the last lines of {path}:", *lines[-LAST_LINES:]]))
