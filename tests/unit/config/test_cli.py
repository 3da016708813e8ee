"""`relax.check` and `relax.plan`: fast, light, and true to the installed libraries."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

import relax.check
import relax.plan
from relax.config.compose import compose_run
from relax.config.plan import build_plan
from relax.config.plan.engine_args import sglang_server_arguments
from relax.config.resolve import resolve
from relax.config.rules.rollout import sglang_server_args
from tests.helpers.runs import ROOT

HEAVY = ("torch", "ray", "megatron", "sglang", "transformers")
SECONDS = 1.0


def test_check_takes_under_a_second_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, relax.check\n"
        "status = relax.check.main([])\n"
        f"heavy = set({HEAVY!r}) & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else status)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("valid\n")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS


def test_check_reports_all_violations_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = ["rollout.temperature=0", "train.lr=0"]
    assert relax.check.main(mistakes) == 2
    text = capsys.readouterr().out
    assert text.endswith("2 errors\n")
    assert relax.check.main([*mistakes, "--format", "json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] is False
    assert {v["rule"] for v in report["violations"]} == {"rollout.sampling", "train.optimizer"}
    assert relax.check.main(["+train.foo=1", "--format", "json"]) == 2
    assert "unknown key train.foo" in json.loads(capsys.readouterr().out)["error"]
    assert relax.check.main(["rollout.top_p=0.9"]) == 0
    assert capsys.readouterr().out.endswith("valid (1 warning)\n")


def test_files_are_checked_unless_static(capsys: pytest.CaptureFixture[str]) -> None:
    assert relax.check.main(["data=file", "data.path=/nowhere"]) == 2
    assert relax.check.main(["data=file", "data.path=/nowhere", "--static"]) == 0
    capsys.readouterr()


def test_plan_prints_roles_work_memory_and_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert relax.plan.main(["parallelism=tp2", "algorithm.kl.loss_coef=0.1"]) == 0
    text = capsys.readouterr().out
    for part in ("trainer", "TP2 PP1 CP1 DP1", "reference", "ref_log_probs", "optimizer state", "kv_channels"):
        assert part in text
    assert relax.plan.main(["parallelism=tp2", "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["megatron"]["TransformerConfig"]["tensor_model_parallel_size"] == 2
    assert plan["batch"]["samples a rollout"] == 256
    assert relax.plan.main(["train.lr=-1"]) == 2
    assert "train.lr" in capsys.readouterr().out


def test_without_a_coefficient_the_plan_has_no_reference() -> None:
    with_kl, without = (
        build_plan(resolve(compose_run(overrides))[0]) for overrides in (["algorithm.kl.loss_coef=0.1"], [])
    )
    assert [role.name for role in with_kl.roles if role.name == "reference"] == ["reference"]
    assert [role.name for role in without.roles if role.name == "reference"] == []
    assert with_kl.memory["reference"] > 0 == without.memory["reference"]
    assert "ref_log_probs" not in [row["phase"] for row in without.work]


def test_engines_and_trainer_share_gpus_in_colocate_and_not_in_hybrid() -> None:
    gpus = ["launcher.num_gpus=4", "rollout=sglang"]
    colocate = build_plan(resolve(compose_run(gpus))[0])
    assert [role.gpus for role in colocate.roles] == ["GPUs 0–3", "GPUs 0–3"]
    hybrid = build_plan(resolve(compose_run([*gpus, "mode=hybrid", "rollout.num_gpus=2"]))[0])
    assert [role.gpus for role in hybrid.roles] == ["GPUs 0–1", "GPUs 2–3"]


def test_every_server_argument_is_known_to_sglang() -> None:
    config, _ = resolve(compose_run(["rollout=sglang", "rollout.sglang.mem_fraction_static=0.6"]))
    arguments = sglang_server_arguments(config)
    assert arguments["mem_fraction_static"] == 0.6
    assert set(arguments) <= set(sglang_server_args())


def test_the_recorded_server_arguments_equal_the_installed_ones() -> None:
    server_args = pytest.importorskip("sglang.srt.server_args")
    assert set(sglang_server_args()) == set(server_args.ServerArgs.__dataclass_fields__)
