"""Reading the tails of workers' files, and what an actor's death says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

from relax.runtime import logs


def worker_file(folder: Path, job: str, pid: int, text: str, stream: str = "out") -> Path:
    path = folder / f"worker-{'ab' * 28}-{job}-{pid}.{stream}"
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "readlink", lambda _: str(tmp_path / "worker-self.out"))
    return tmp_path


def test_named_actors_and_those_that_died_early_are_read_and_others_are_not(folder: Path) -> None:
    named = worker_file(folder, "01000000", 1, ":job_id:01000000\n:actor_name:TrainerActor\nhello\n")
    worker_file(folder, "01000000", 2, ":job_id:01000000\n:actor_name:TrainerActor\ntraceback\n", "err")
    worker_file(folder, "01000000", 3, ":job_id:01000000\n:task_name:f\nchatter\n")
    worker_file(folder, "02000000", 4, ":job_id:02000000\n:actor_name:TrainerActor\nanother run\n")
    elsewhere = worker_file(folder, "01000000", 5, ":actor_name:EngineActor\n")  # another node's, on this machine
    names = {str(named): "trainer-0.out", str(elsewhere): "engine-0.out", str(folder / "gone"): "trainer-1.out"}
    tails = logs.read_tails([str(named), str(folder / "gone")], names, "01000000")
    assert {tail.name for tail in tails} == {"trainer-0.out", "TrainerActor-2.err"}


def test_only_the_end_of_a_long_file_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 10)
    path = worker_file(folder, "01000000", 1, "x" * 100 + "é the end")
    (tail,) = logs.read_tails([str(path)], {str(path): "trainer-0.out"}, "01000000")
    assert tail.text.endswith("the end")
    assert len(tail.text) <= 10


def test_the_error_of_a_dead_actor_shows_what_it_printed_last(tmp_path: Path) -> None:
    mine, other = tmp_path / "trainer-0.err", tmp_path / "trainer-1.err"
    mine.write_text(":job_id:01\n" + "".join(f"line {i}\n" for i in range(40)))
    other.write_text("innocent\n")
    error = ray.exceptions.RayActorError()
    error.args = ("The actor died:\n\tpid: 4711\n\tname: trainer-0\n",)
    error._error_msg = error.error_msg = error.args[0]
    logs.add_last_lines(error, [mine, other])
    (note,) = error.__notes__
    assert note.splitlines()[0] == f"the last lines of {mine}:"
    assert note.splitlines()[-1] == "line 39"
    assert len(note.splitlines()) == logs.LAST_LINES + 1
