"""SmolLM2-135M-Instruct on real tasks. Skipped where the model folder or the data is absent.

`python -m relax.data.prepare smollm2 --output models` makes the folder; GSM8K is looked for in `data/` and beside the
checkout.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.helpers.runs import ROOT, FinishedRun, train

MODEL = ROOT / "models/SmolLM2-135M-Instruct"
DATA_DIRS = (ROOT / "data", ROOT.parent / "shared/data")

pytestmark = [
    pytest.mark.full,
    pytest.mark.real_data,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MODEL.is_dir(), reason="no SmolLM2 folder: python -m relax.data.prepare smollm2"),
]


def assert_sane(run: FinishedRun, *, num_rollout: int) -> None:
    assert run.returncode == 0, run.output[-3000:]
    assert len(run.rewards) == num_rollout
    for row in run.metrics:
        assert all(np.isfinite(value) for value in row.values())
        # bf16's own distance between an engine's and a trainer's log-probs
        assert row["train/train_rollout_logprob_abs_diff"] < 0.1
    before, after = load_file(MODEL / "model.safetensors"), load_file(run.root / "model/model.safetensors")
    assert set(before) == set(after)
    assert any(not np.array_equal(before[name].float(), after[name].float()) for name in before)


def test_grpo_on_gsm8k_has_signal_and_changes_the_weights(tmp_path: Path) -> None:
    folder = next((path for path in DATA_DIRS if (path / "gsm8k/train.jsonl").is_file()), None)
    if folder is None:
        pytest.skip("no gsm8k/train.jsonl in data/")
    run = train(tmp_path / "run", "experiment=smollm2_gsm8k", f"paths.data_dir={folder}", timeout_seconds=1700)
    assert_sane(run, num_rollout=3)
    assert all(row["rollout/zero_std_fraction"] < 1 for row in run.metrics)
    assert all(row["train/grad_norm"] > 0 for row in run.metrics)


def test_grpo_on_chain_sum_learns(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "experiment=smollm2_chain_sum", timeout_seconds=1700)
    assert_sane(run, num_rollout=20)
    assert np.mean(run.rewards[-5:]) > np.mean(run.rewards[:5])
