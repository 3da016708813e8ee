"""Custom rewards of the tests."""

from __future__ import annotations

import time

import numpy as np

from relax.data.sample import Sample

NOT_CALLABLE = 3


def length(sample: Sample) -> float:
    return len(sample.response) / 10


def parts(sample: Sample) -> dict[str, float]:
    return {"a": 0.25, "b": np.float32(0.5)}


def total(sample: Sample) -> dict[str, float]:
    return {"a": 0.25, "reward": 2.0}


def raises(sample: Sample) -> float:
    raise KeyError(f"oops {sample.index}")


def hangs_on_7(sample: Sample) -> float:
    if sample.index % 10 == 7:
        time.sleep(3600)
    return 1.0


def exits(sample: Sample) -> float:
    raise SystemExit(3)


def returns(sample: Sample) -> object:
    return {"nan": float("nan"), "none": None, "text": "1", "inf": {"a": float("inf")}, "empty": {}}[sample.response]


def slow(sample: Sample) -> bool:
    time.sleep(0.05)
    return True


def hangs(sample: Sample) -> float:
    time.sleep(3600)
    return 1.0
