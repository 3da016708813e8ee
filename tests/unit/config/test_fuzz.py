"""Fuzz: whatever a config says, it ends as valid or as violations; no rule fails on what another one reports."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relax.config.availability import unavailable
from relax.config.compose import compose_run
from relax.config.plan import build_plan
from relax.config.resolve import resolve
from relax.config.rules import Severity, check
from relax.config.schema import RunConfig
from tests.helpers.mutations import mutated, mutations

BASES: dict[str, RunConfig] = {
    "tiny": compose_run(),
    "gpu": compose_run(["launcher.num_gpus=8", "rollout=sglang", "mode=hybrid", "parallelism.tensor=2"]),
    "sdpo": compose_run(["algorithm=sdpo", "teacher=frozen", "algorithm.distill.support=student_topk"]),
}


def ends_well(config: RunConfig) -> None:
    """Resolve, check and plan; every violation is complete, and resolving twice changes nothing."""
    resolved, changes = resolve(config)
    again, more = resolve(resolved)
    assert repr(again) == repr(resolved)  # by text: NaN is not equal to itself
    assert not more
    violations = check(resolved)
    list(unavailable(resolved))
    for violation in violations:
        assert violation.path
        assert violation.required
        assert violation.why
        assert violation.fix
        assert str(violation)
    assert all(change.because for change in changes)
    if all(violation.severity is not Severity.error for violation in violations):
        build_plan(resolved)


def fuzz(examples: int) -> Any:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.parametrize("base", sorted(BASES))
@fuzz(150)
@given(data=st.data())
def test_a_mutated_config_is_valid_or_has_violations(base: str, data: st.DataObject) -> None:
    ends_well(mutated(BASES[base], data.draw(mutations(BASES[base]))))


@pytest.mark.full
@pytest.mark.parametrize("base", sorted(BASES))
@fuzz(1700)
@given(data=st.data())
def test_a_mutated_config_is_valid_or_has_violations_in_thousands(base: str, data: st.DataObject) -> None:
    ends_well(mutated(BASES[base], data.draw(mutations(BASES[base]))))
