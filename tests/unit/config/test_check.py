"""Resolution, rules and availability."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from relax.config.check import resolve_and_check
from relax.config.compose import compose_run, conf_dir
from relax.config.errors import ConfigError
from relax.config.resolve import needs_reference, resolve, resolve_length
from relax.config.rules import RULES, Scope, Severity, Violation, check
from relax.config.toggles import TOGGLES


def violations(*overrides: str) -> list[Violation]:
    """Violations of the rules that look at the config alone."""
    return check(resolve(compose_run(overrides))[0], scopes=(Scope.static,))


def rules_broken(rule_id: str, *overrides: str) -> set[str]:
    """Errors of a config; rules on this machine's files and devices count only where the case is about them."""
    resolved, _ = resolve(compose_run(overrides))
    scopes = (Scope.static, RULES[rule_id].scope)
    return {v.rule for v in check(resolved, scopes=scopes) if v.severity is Severity.error}


def test_the_default_passes_and_resolving_twice_changes_nothing() -> None:
    resolved, changes, warnings = resolve_and_check(compose_run())
    assert not warnings
    assert {c.path for c in changes} >= {"parallelism.data", "train.global_batch_size"}
    again, more = resolve(resolved)
    assert again == resolved
    assert not more


OPD = ("algorithm=opd", "teacher=frozen")
SDPO = ("algorithm=sdpo", "teacher=frozen", "algorithm.distill.support=student_topk")

# (overrides that break the rule, the nearest that must pass)
CASES: dict[str, tuple[list[str], list[str]]] = {
    "model.origin": (["model.charset=null"], ["model.charset='0123456789>'"]),
    "model.folder": (["model.source=/nowhere"], ["model.source=null"]),
    "model.dimensions": (["model.arch.num_kv_heads=3"], ["model.arch.num_kv_heads=4"]),
    "parallelism.degrees": (["parallelism.tensor=0"], ["parallelism.tensor=1"]),
    "parallelism.tensor_divides": (["parallelism.tensor=3"], ["parallelism.tensor=2"]),
    "parallelism.pipeline_divides": (["parallelism.pipeline=3"], ["parallelism.pipeline=2"]),
    "parallelism.sequence_parallel": (
        ["parallelism.sequence_parallel=true"],
        ["parallelism.sequence_parallel=true", "parallelism.tensor=2"],
    ),
    "parallelism.world_size": (["launcher.num_gpus=1", "parallelism.data=2"], ["parallelism.data=2"]),
    "parallelism.gpus_exist": (["launcher.num_gpus=4096", "parallelism.data=1"], ["launcher.num_gpus=0"]),
    "batch.sizes": (["rollout.batch_size=0"], ["rollout.batch_size=1"]),
    "batch.length": (["train.num_rollout=null"], ["train.num_rollout=null", "train.num_epoch=1"]),
    "batch.global_batch": (["train.global_batch_size=100"], ["train.global_batch_size=128"]),
    "batch.steps_divide": (["train.num_steps_per_rollout=3"], ["train.num_steps_per_rollout=2"]),
    "batch.context_length": (["rollout.max_response_len=65"], ["rollout.max_response_len=63"]),
    "algorithm.clip": (["algorithm.loss.dual_clip=1.0"], ["algorithm.loss.dual_clip=1.1"]),
    "algorithm.kl": (
        ["algorithm.kl.loss_coef=0.1", "algorithm.kl.kind=k1"],
        ["algorithm.kl.penalty_coef=0.1", "algorithm.kl.kind=k1"],
    ),
    "algorithm.importance": (
        ["algorithm.importance.kind=tis", "algorithm.old_policy=rollout"],
        ["algorithm.importance.kind=tis"],
    ),
    "distill.divergence": (
        [*OPD, "algorithm.distill.divergence=jsd", "algorithm.distill.beta=1"],
        [*OPD, "algorithm.distill.divergence=jsd", "algorithm.distill.beta=0.99"],
    ),
    "distill.term": (
        [*OPD, "algorithm.distill.advantage_coef=1", "algorithm.distill.support=full"],
        [*OPD, "algorithm.distill.advantage_coef=1"],
    ),
    "distill.sdpo": ([*SDPO, "algorithm.distill.outside=truncate"], [*SDPO, "algorithm.distill.outside=renormalize"]),
    "distill.parallelism": ([*SDPO, "parallelism.pipeline=2"], [*SDPO]),
    "distill.opsd": (
        ["algorithm=opsd", "teacher=frozen"],
        ["algorithm=opsd", "teacher=frozen", "algorithm.teacher_prompt_key=hint"],
    ),
    "distill.teacher": (["algorithm=opd"], [*OPD]),
    "distill.teacher_folder": (["algorithm=opd", "teacher=sglang", "teacher.source=/nowhere"], [*OPD]),
    "perf.publish_interval_range": (["perf.publish_interval=0"], ["perf.publish_interval=1"]),
    "mode.staleness": (
        ["mode=hybrid", "mode.max_staleness=1"],
        ["mode=hybrid", "mode.max_staleness=1", "algorithm.importance.kind=tis"],
    ),
    "mode.devices": (
        ["mode=hybrid", "launcher.num_gpus=2", "rollout.num_gpus=2", "parallelism.data=1"],
        ["mode=hybrid", "launcher.num_gpus=2", "rollout.num_gpus=1", "parallelism.data=1"],
    ),
    "mode.offload": (["mode.offload=true"], ["mode.offload=false"]),
    "rollout.sglang_args": (["rollout.sglang.tp_sise=2"], ["rollout.sglang.mem_fraction_static=0.5"]),
    "rollout.over_sampling": (["rollout.over_sampling_batch_size=31"], ["rollout.over_sampling_batch_size=32"]),
    "tracking.samples": (["tracking.rollout_samples=-1"], ["tracking.rollout_samples=0"]),
    "tracking.wandb_key": (["tracking.wandb.mode=online"], ["tracking.wandb.mode=offline"]),
    "rollout.sampling": (["rollout.temperature=0"], ["rollout.temperature=0.1"]),
    "rollout.timeouts": (["rollout.http_timeout_seconds=0"], ["rollout.http_timeout_seconds=1"]),
    "eval.sets": (["eval.sets.reverse.temperature=0"], ["eval.sets.reverse.temperature=0.5"]),
    "data.origin": (["data.kind=file"], ["data.kind=task"]),
    "data.file": (["data.kind=file", "data.path=/nowhere.jsonl"], ["data.path=/nowhere.jsonl"]),
    "reward.kind": (["reward.kind=custom"], ["reward.kind=custom", "reward.path=a.b:c"]),
    "train.optimizer": (["train.lr=0"], ["train.lr=1e-9"]),
    "train.lr_schedule": (["train.lr_schedule.min_lr=1"], ["train.lr_schedule.min_lr=1e-3"]),
    "paths.output_dir": (["paths.output_dir=Makefile/outputs"], ["paths.output_dir=outputs"]),
}


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("rule_id", sorted(CASES))
def test_a_rule_rejects_its_case_and_accepts_the_nearest(rule_id: str) -> None:
    wrong, right = CASES[rule_id]
    assert rules_broken(rule_id, *wrong) == {rule_id}
    assert rules_broken(rule_id, *right) == set()


def test_every_error_rule_has_a_case() -> None:
    errors = {r.id for r in RULES.values() if r.severity is Severity.error}
    assert errors - {f"perf.{name}" for name in TOGGLES} == set(CASES)


def on(name: str) -> list[str]:
    """Overrides that select a toggle in a config that it accepts."""
    requirements = {
        "pack_zero_adv": ["perf.skip_zero_adv=true", "perf.pack_zero_adv=true"],
        "publish_interval": ["perf.publish_interval=2", "algorithm.old_policy=rollout"],
    }
    return requirements.get(name, [f"perf.{name}=true"])


@pytest.mark.parametrize("name", sorted(TOGGLES))
def test_a_toggle_is_accepted_alone_with_what_it_requires(name: str) -> None:
    assert rules_broken(f"perf.{name}", *on(name)) == set()


@pytest.mark.parametrize(
    ("name", "path"), [(t.name, c.path) for t in TOGGLES.values() for c in t.requires if c.broken_by]
)
def test_a_toggle_refuses_what_breaks_each_of_its_conditions_and_its_fix_mends_it(name: str, path: str) -> None:
    condition = next(c for c in TOGGLES[name].requires if c.path == path)
    wrong = [*on(name), *condition.broken_by]
    found = [v for v in violations(*wrong) if v.rule == f"perf.{name}"]
    assert path in [v.path for v in found]
    mended = [v for v in violations(*wrong, *condition.fix.split()) if v.rule == f"perf.{name}"]
    assert path not in [v.path for v in mended]


def test_packing_needs_skipping_and_an_interval_needs_a_correction() -> None:
    assert rules_broken("perf.pack_zero_adv", "perf.pack_zero_adv=true") == {"perf.pack_zero_adv"}
    assert rules_broken("perf.publish_interval", "perf.publish_interval=2") == {"perf.publish_interval"}
    reuse = ["perf.publish_interval=2", "perf.reuse_log_probs=true"]
    assert rules_broken("perf.publish_interval", *reuse) == {"perf.publish_interval"}
    assert rules_broken("perf.publish_interval", *reuse, "algorithm.importance.kind=tis") == set()


@pytest.mark.parametrize("pair", list(itertools.combinations(sorted(TOGGLES), 2)), ids="+".join)
def test_two_toggles_together_pass_or_name_the_conflict(pair: tuple[str, str]) -> None:
    names = ",".join(pair)
    found = [v for v in violations(f"+perf=[{names}]") if v.severity is Severity.error]
    assert all(v.rule in {f"perf.{name}" for name in pair} and v.fix for v in found)
    if pair == ("pack_zero_adv", "skip_zero_adv"):
        assert not found


def test_seven_mistakes_are_seven_violations_and_each_fix_removes_its_own() -> None:
    mistakes = [
        "rollout.temperature=0",
        "train.lr=-1",
        "parallelism.tensor=3",
        "train.global_batch_size=100",
        "algorithm.loss.dual_clip=0.5",
        "mode.offload=true",
        "tracking.rollout_samples=-2",
    ]
    found = violations(*mistakes)
    assert len(found) == 7
    for violation in found:
        left = violations(*mistakes, *violation.fix.split(" (")[0].split())
        assert len(left) == 6
        assert violation.path not in [v.path for v in left]


def test_an_evaluation_cadence_that_defeats_the_interval_is_warned_of() -> None:
    base = ["perf.publish_interval=2", "algorithm.old_policy=rollout"]
    assert [v.rule for v in violations(*base, "eval.interval=3")] == ["perf.publish_cadence"]
    assert violations(*base, "eval.interval=4") == []


@pytest.mark.parametrize("override", ["rollout.top_p=0.9", "rollout.top_k=5", "train.max_tokens_per_gpu=4"])
def test_a_doubtful_choice_is_a_warning(override: str) -> None:
    _, _, warnings = resolve_and_check(compose_run([override]))
    assert [w.severity for w in warnings] == [Severity.warning]


@pytest.mark.parametrize("group", sorted(p.name for p in conf_dir().iterdir() if p.is_dir() and p.name != "experiment"))
def test_every_option_of_a_group_is_valid_or_says_what_it_lacks(group: str) -> None:
    for option in sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")):
        found = violations(f"+{group}={option}" if group == "perf" else f"{group}={option}")
        assert all(v.fix and v.why for v in found), option


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_and_check(compose_run(["rollout.temperature=-1", "train.lr=0", "parallelism.tensor=3"]))
    text = str(caught.value)
    assert text.count("error: ") == 3
    assert text.count("fix: ") == 3


@pytest.mark.parametrize(
    "override",
    [
        "+perf=skip_zero_adv",
        "+perf=reuse_log_probs",
        "mode=async",
        "rollout=sglang",
        "algorithm=sdpo",
        "teacher=ema",
        "parallelism.pipeline=2",
        "algorithm.old_policy=kept",
    ],
)
def test_what_has_not_landed_says_so(override: str) -> None:
    with pytest.raises(ConfigError, match="not available yet"):
        resolve_and_check(compose_run([override]))


def test_batch_arithmetic() -> None:
    resolved, _ = resolve(compose_run(["train.num_steps_per_rollout=4"]))
    assert resolved.train.global_batch_size == 64
    resolved, _ = resolve(compose_run(["train.global_batch_size=128"]))
    assert resolved.train.num_steps_per_rollout == 2


def test_the_shorter_of_rollouts_and_epochs_wins() -> None:
    def length(*overrides: str) -> int | None:
        return resolve_length(compose_run(overrides), num_prompts=320)[0].train.num_rollout

    assert length("train.num_rollout=50") == 50
    assert length("train.num_rollout=50", "train.num_epoch=1") == 10
    assert length("train.num_rollout=5", "train.num_epoch=1") == 5
    assert length("train.num_rollout=null", "train.num_epoch=3") == 30


def test_on_policy_async_runs_reuse_log_probs_by_themselves() -> None:
    resolved, changes = resolve(compose_run(["mode=async"]))
    assert resolved.perf.reuse_log_probs
    assert "perf.reuse_log_probs" in [change.path for change in changes]
    for other in (
        ["mode=colocate"],
        ["mode=async", "mode.max_staleness=1"],
        ["mode=async", "algorithm.old_policy=rollout"],
    ):
        assert not resolve(compose_run(other))[0].perf.reuse_log_probs


def test_zero_kl_removes_the_reference_and_says_why() -> None:
    without, changes = resolve(compose_run(["algorithm.kl.reference=true"]))
    assert without.algorithm.kl.reference is False
    assert [c.before for c in changes if c.path == "algorithm.kl.reference"] == [True]
    assert resolve(compose_run(["algorithm.kl.loss_coef=0.1"]))[0].algorithm.kl.reference is True


def test_a_reference_is_needed_only_with_a_coefficient() -> None:
    assert not needs_reference(compose_run())
    assert needs_reference(compose_run(["algorithm.kl.loss_coef=0.1"]))
    assert needs_reference(compose_run(["algorithm.kl.penalty_coef=0.1"]))


def test_checking_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from relax.config.check import resolve_and_check\n"
        "from relax.config.compose import compose_run\n"
        "resolve_and_check(compose_run())\n"
        "heavy = {'torch', 'ray', 'megatron', 'sglang', 'transformers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
