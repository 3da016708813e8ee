from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from relax.config.schema import RewardConfig, RewardKind
from relax.data.sample import Sample, SampleStatus
from relax.data.tasks import reasoning_gym_rows
from relax.rewards.calls import RewardError
from relax.rewards.scoring import RewardScorer, score_samples


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def sample(
    response: str,
    label: str | None = "42",
    *,
    index: int = 0,
    status: SampleStatus = SampleStatus.completed,
    **fields: Any,
) -> Sample:
    return Sample(
        index=index,
        group_index=0,
        rollout_id=0,
        prompt="q",
        prompt_token_ids=[1],
        label=label,
        response=response,
        response_token_ids=[2],
        rollout_log_probs=[0.0],
        loss_mask=[1],
        weight_versions=[0],
        status=status,
        **fields,
    )


def custom(name: str, **fields: Any) -> RewardConfig:
    return RewardConfig(kind=RewardKind.custom, path=f"reward_functions:{name}", **fields)


# ---- exact match, format, require_stop


@pytest.mark.parametrize(
    ("response", "reward"), [("42", 1.0), (" 42\n", 1.0), ("4 2", 0.0), ("", 0.0), ("42<pad>", 0.0)]
)
def test_exact_match_strips_only(response: str, reward: float) -> None:
    it = sample(response)
    report = score_samples([it], RewardConfig())
    assert (it.reward, it.reward_parts) == (reward, {"answer": reward})
    assert (report.num_scored, report.mean_reward, report.mean_parts) == (1, reward, {"answer": reward})


def test_reward_is_the_weighted_sum_of_parts() -> None:
    config = RewardConfig(answer_weight=2.0, format_weight=0.5, format_pattern="<a>.*</a>")
    samples = [sample("42"), sample("<a>4\n2</a>"), sample("<a>42</a>", label="<a>42</a>")]
    report = score_samples(samples, config)
    assert [s.reward for s in samples] == [2.0, 0.5, 2.5]
    assert samples[1].reward_parts == {"answer": 0.0, "format": 1.0}
    assert report.mean_parts == {"answer": pytest.approx(2 / 3), "format": pytest.approx(2 / 3)}


def test_unfinished_response_scores_zero_on_the_answer_only() -> None:
    config = RewardConfig(format_weight=0.1, format_pattern="4")
    it = sample("42", status=SampleStatus.truncated)
    report = score_samples([it], config)
    assert (it.reward, it.reward_parts, report.num_unfinished) == (0.1, {"answer": 0.0, "format": 1.0}, 1)
    config.require_stop = False
    assert score_samples([it], config).num_unfinished == 0
    assert it.reward_parts["answer"] == 1.0


def test_aborted_and_failed_samples_are_skipped_and_pending_ones_refused() -> None:
    lost = [sample("42", status=SampleStatus.aborted), sample("42", status=SampleStatus.failed)]
    report = score_samples([*lost, sample("42")], RewardConfig())
    assert (report.num_scored, report.num_skipped) == (1, 2)
    assert [s.reward for s in lost] == [None, None]
    with pytest.raises(ValueError, match="sample 5 is pending"):
        score_samples([sample("42", index=5, status=SampleStatus.pending)], RewardConfig())


def test_missing_label_names_the_sample_and_the_option() -> None:
    with pytest.raises(ValueError, match=r"sample 3 has no label; set data\.label_key"):
        score_samples([sample("x", None, index=3)], RewardConfig())


def test_no_samples_give_an_empty_report() -> None:
    assert score_samples([], RewardConfig(kind=RewardKind.math)).num_scored == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"timeout_seconds": 0.0}, r"reward\.timeout_seconds=0\.0"),
        ({"timeout_seconds": float("inf")}, "finite"),
        ({"num_workers": 0}, r"reward\.num_workers=0"),
        ({"answer_weight": float("nan")}, r"reward\.answer_weight=nan"),
        ({"format_weight": 0.1}, r"needs reward\.format_pattern"),
        ({"format_pattern": "("}, r"reward\.format_pattern='\(' is no regex"),
    ],
)
def test_config_that_cannot_score_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RewardScorer(RewardConfig(**fields))


def test_exact_match_has_no_pool_overhead() -> None:
    samples = [sample("42", index=i) for i in range(256)]
    with RewardScorer(RewardConfig()) as scorer:
        best = min(scorer.score(samples).seconds for _ in range(5))
    assert best < 0.02


# ---- math

MATH_CASES = [
    ("18", r"The answer is \boxed{18}.", 1.0),
    ("18", "3 + 15 = 18 dollars", 1.0),
    ("18", "$18.00", 1.0),
    ("1000", "1,000", 1.0),
    ("1,234", r"\boxed{1234}", 1.0),
    ("18", "I think 19", 0.0),
    ("18", "no number here", 0.0),
    ("18", "", 0.0),
    ("5", r"first 5, but finally \boxed{6}", 0.0),
    ("-5", "the answer is -5", 1.0),
    ("1/2", r"\boxed{0.5}", 1.0),
    ("2.5", r"\boxed{\frac{5}{2}}", 1.0),
    ("x^2+2x+1", r"\boxed{(x+1)^2}", 1.0),
    ("$\\frac{1}{3}$", r"\boxed{1/3}", 1.0),
    ("18", "}{\\boxed{\n\x00\ud83d", 0.0),
]


def test_math_verdicts_and_pool_reuse() -> None:
    with RewardScorer(RewardConfig(kind=RewardKind.math)) as scorer:
        samples = [sample(response, label, index=i) for i, (label, response, _) in enumerate(MATH_CASES)]
        scorer.score(samples)
        assert [s.reward for s in samples] == [expected for _, _, expected in MATH_CASES]
        many = [sample(rf"so \boxed{{{i}}}", str(i), index=i) for i in range(64)]
        assert scorer.score(many).mean_reward == 1.0
        assert scorer.score(many).seconds < 1.5  # about 1 ms an item once the worker is up
        with pytest.raises(RewardError, match=r"sample 9: label ' ' is no expression"):
            scorer.score([sample("4", " ", index=9)])


def test_math_hang_is_killed_counted_and_does_not_block_the_others() -> None:
    # SymPy evaluates this factorial of 756 million digits, in C: no thread, nor a signal, could stop it
    samples = [sample("42", index=0), sample(r"\boxed{(10^8)!}", index=1), sample("42", index=2)]
    with RewardScorer(RewardConfig(kind=RewardKind.math, timeout_seconds=1.0)) as scorer:
        start = time.monotonic()
        report = scorer.score(samples)
    assert time.monotonic() - start < 20
    assert [s.reward for s in samples] == [1.0, 0.0, 1.0]
    assert report.num_timeouts == 1


# ---- reasoning-gym


def test_reasoning_gym_uses_the_tasks_own_scorer_on_the_stripped_response() -> None:
    pytest.importorskip("reasoning_gym")
    row = reasoning_gym_rows("chain_sum", size=1, seed=0, task_args={})[0]
    config = RewardConfig(kind=RewardKind.reasoning_gym)
    samples = [
        sample(f"  {row.label}\n", row.label, metadata=row.metadata),
        sample("zzz", row.label, metadata=row.metadata),
    ]
    score_samples(samples, config)
    assert [s.reward for s in samples] == [1.0, 0.0]
    with pytest.raises(RewardError, match=r"needs prompts of data\.kind=reasoning_gym"):
        score_samples([sample("1")], config)


# ---- custom


def test_custom_number_is_the_answer_and_parts_are_summed_unless_a_total_is_given() -> None:
    for name, reward, parts in (
        ("length", 0.2, {"answer": 0.2}),
        ("parts", 0.75, {"a": 0.25, "b": 0.5}),
        ("total", 2.0, {"a": 0.25}),
    ):
        it = sample("42")
        score_samples([it], custom(name))
        assert (it.reward, it.reward_parts) == (reward, parts)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (None, "must be 'package.module:function'"),
        ("reward_functions", "must be 'package.module:function'"),
        ("no_such_module:f", "module 'no_such_module' does not import .ModuleNotFoundError"),
        ("reward_functions:no_such", r"has no 'no_such'; it has \["),
        ("reward_functions:NOT_CALLABLE", "is int, not callable"),
    ],
)
def test_custom_path_that_names_no_function_is_refused(path: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RewardScorer(RewardConfig(kind=RewardKind.custom, path=path))


def test_module_that_fails_to_import_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_reward.py").write_text("1/0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"reward\.path='broken_reward:f'.*ZeroDivisionError"):
        RewardScorer(RewardConfig(kind=RewardKind.custom, path="broken_reward:f"))
    sys.modules.pop("broken_reward", None)


@pytest.mark.parametrize(("name", "kind"), [("raises", KeyError), ("exits", SystemExit)])
def test_custom_reward_that_raises_fails_with_the_sample(name: str, kind: type[BaseException]) -> None:
    with pytest.raises(RewardError, match=f"raised {kind.__name__} on sample 11") as caught:
        score_samples([sample("x", index=11)], custom(name))
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize("case", ["nan", "none", "text", "inf", "empty"])
def test_custom_reward_that_returns_no_number_fails_with_the_sample_and_changes_none(case: str) -> None:
    samples = [sample(case, index=8)]
    with pytest.raises(RewardError, match="sample 8"):
        score_samples(samples, custom("returns"))
    assert samples[0].reward is None


def test_custom_reward_that_hangs_is_given_up_and_counted() -> None:
    samples = [sample("x", index=i) for i in range(30)]
    start = time.monotonic()
    report = score_samples(samples, custom("hangs_on_7", timeout_seconds=0.3, num_workers=2))
    assert time.monotonic() - start < 10
    assert report.num_timeouts == 3
    assert all(s.reward == (0.0 if s.index % 10 == 7 else 1.0) for s in samples)


def test_custom_rewards_run_at_the_same_time() -> None:
    report = score_samples([sample("x", index=i) for i in range(16)], custom("slow", num_workers=16))
    assert report.mean_reward == 1.0
    assert report.seconds < 0.6


def test_math_worker_whose_pool_is_gone_ends_by_itself() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "relax.rewards.math_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    output, _ = worker.communicate(json.dumps(["1", r"\boxed{(10^8)!}", 0.5]).encode() + b"\n", timeout=60)
    assert output == b"ready\n"
    assert worker.returncode == -signal.SIGALRM
