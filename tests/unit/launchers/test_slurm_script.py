"""The sbatch script, run for real against stand-ins for Slurm's and Ray's commands that note how they were called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relax.config.compose import compose_run
from relax.config.resolve import resolve
from relax.launch import render

OVERRIDES = ["launcher=slurm", "launcher.num_nodes=3", "launcher.start_timeout_seconds=3", "parallelism=dp2"]
AWKWARD = "data.prompt_template='{prompt} $HOME `x` \"y\" = '"

STAND_INS = {
    "scontrol": "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n",
    "hostname": "#!/bin/sh\ncase $1 in --ip-address) echo 127.0.1.1 ;; *) echo 10.0.0.1 10.0.0.2 ;; esac\n",
    "srun": """#!{python}
import json, os, sys
step = [a for a in sys.argv[1:]]
options = []
while step[0].startswith("--"):
    options.append(step.pop(0))
host = next(o.split("=", 1)[1] for o in options if o.startswith("--nodelist="))
token = os.environ["RAY_AUTH_TOKEN"]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([host, len(token), os.environ["SRUN_CPUS_PER_TASK"], *step]) + "\\n")
os.execvp(step[0], step)
""",
    "ray": "#!/bin/sh\n"
    '[ "$1" = start ] || exit $HEALTH\n[ -z "$HEAD_DIES" ] || exit 1\necho $$ >> $PIDS\nexec sleep 60\n',
    "python": '#!/bin/sh\n[ "$1" != -c ] || exec {python} "$@"\nsleep 0.5\nexit $RUN\n',
}


class Job:
    """A script that ran, and what it did."""

    def __init__(self, folder: Path, *, health: int = 0, run: int = 0, head_dies: str = "") -> None:
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        for name, text in STAND_INS.items():
            (bin_dir / name).write_text(text.replace("{python}", sys.executable))
            (bin_dir / name).chmod(0o755)
        overrides = [*OVERRIDES, AWKWARD]
        script = render(resolve(compose_run(overrides))[0], overrides)
        environment = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "CALLS": str(folder / "calls"),
            "PIDS": str(folder / "pids"),
            "HEALTH": str(health),
            "RUN": str(run),
            "HEAD_DIES": head_dies,
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_JOB_ID": "70123",
        }
        (folder / "job").write_text(script)
        done = subprocess.run(
            ["bash", str(folder / "job")], env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        self.returncode, self.stderr = done.returncode, done.stderr
        self.calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
        pids = folder / "pids"
        self.pids = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []

    def of(self, *words: str) -> list[list[str]]:
        """Calls whose command starts with `words`."""
        return [call for call in self.calls if tuple(call[3 : 3 + len(words)]) == words]


@pytest.mark.parametrize("status", [0, 3])
def test_ray_runs_on_every_node_and_is_gone_after_the_run(tmp_path: Path, status: int) -> None:
    job = Job(tmp_path, run=status)
    assert job.returncode == status, job.stderr
    assert sorted(call[0] for call in job.of("ray", "start")) == ["n1", "n2", "n3"]
    assert [call[0] for call in job.of("ray", "start") if "--head" in call] == ["n1"]
    assert sum("--address=10.0.0.1:20123" in call for call in job.of("ray", "start")) == 2
    assert all((length, cpus) == (64, "1") for _, length, cpus, *_ in job.calls)
    (run,) = job.of("python", "-m", "relax.train")
    assert run[0] == "n1"
    assert run[6:] == [*OVERRIDES, AWKWARD, "launcher.kind=ray", "launcher.address=10.0.0.1:20123"]
    assert len(job.pids) == 3
    for pid in job.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_head_that_does_not_answer_ends_the_job_in_time(tmp_path: Path) -> None:
    job = Job(tmp_path, health=1)
    assert job.returncode == 1
    assert "waited 3 s for Ray on n1 (launcher.start_timeout_seconds)" in job.stderr
    assert not job.of("python", "-m", "relax.train")


def test_a_head_that_dies_ends_the_job_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path, health=1, head_dies="yes")
    assert job.returncode == 1
    assert "Ray on n1 ended at its start" in job.stderr
