"""Steps a second of the default job against a plain single-process loop, interleaved A B A B.

python benchmarks/overhead.py [--rounds 3] [--steps 40]

Relax's step time is the time between two publications, so everything a run does between steps is in it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from relax.tracking.files import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
WARM_UP_STEPS = 5


def relax_seconds(run_dir: Path, steps: int) -> list[float]:
    """Seconds of every step of the default job."""
    command = [
        sys.executable,
        "-m",
        "relax.train",
        f"hydra.run.dir={run_dir}",
        f"train.num_rollout={steps}",
        "train.stop.reward=null",
        "eval=none",
        "tracking.progress=false",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    times = [row["time"] for row in read_jsonl(run_dir / "events.jsonl") if row["event"] == "published"]
    return [after - before for before, after in itertools.pairwise(times)]


def plain_seconds(model: Path, steps: int) -> list[float]:
    """Seconds of every step of the plain loop."""
    command = [sys.executable, str(ROOT / "benchmarks/plain_loop.py"), "--model", str(model), "--steps", str(steps)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(arguments.rounds):
            run_dir = Path(folder) / str(index)
            ours = statistics.median(relax_seconds(run_dir, arguments.steps)[WARM_UP_STEPS:])
            # both start from the same weights: those after the warm-up differ only in what generation is worth
            plain = statistics.median(plain_seconds(run_dir / "model", arguments.steps)[WARM_UP_STEPS:])
            ratios.append(plain / ours)
            print(f"round {index}: relax {1 / ours:.1f} steps/s, plain {1 / plain:.1f} steps/s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f} (target at least 0.60)")


if __name__ == "__main__":
    main()
