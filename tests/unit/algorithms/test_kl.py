from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.algorithms.kl import LOG_RATIO_BOUND, kl_estimate
from relax.config.schema import KlKind

log_probs_lists = st.lists(st.floats(-15, 0, width=32), min_size=1, max_size=8)


def definition(kind: KlKind, difference: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    k3 = (-difference).exp() - 1 + difference
    return {"k1": difference, "k2": difference**2 / 2, "k3": k3, "unbiased": ratio * k3}[kind.value]


@pytest.mark.parametrize("kind", list(KlKind))
@settings(deadline=None, max_examples=40)
@given(current=log_probs_lists, shift=st.floats(-4, 4, width=32), ratio=st.floats(0.125, 8, width=32))
def test_estimate_is_the_float64_definition(kind: KlKind, current: list[float], shift: float, ratio: float) -> None:
    log_probs = torch.tensor(current)
    reference = log_probs + shift
    ratios = torch.full_like(log_probs, ratio)
    expected = definition(kind, log_probs.double() - reference.double(), ratios.double())
    torch.testing.assert_close(
        kl_estimate(log_probs, reference, kind, ratio=ratios).double(), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("kind", [KlKind.k2, KlKind.k3, KlKind.unbiased])
def test_estimate_is_zero_at_equality_and_never_negative(kind: KlKind) -> None:
    difference = torch.arange(-50, 51) / 16
    values = kl_estimate(difference, torch.zeros(101), kind, ratio=difference.exp())
    assert values[50] == 0
    assert (values >= 0).all()


def test_small_differences_keep_their_precision() -> None:
    # exp(−d) − 1 + d in fp32 would be 0 or 1e-7 here, by cancellation
    value = kl_estimate(torch.tensor([1e-3]), torch.zeros(1), KlKind.k3, ratio=torch.ones(1))
    assert value.item() == pytest.approx(5e-7, rel=0.2)


@pytest.mark.parametrize("kind", list(KlKind))
def test_odd_tokens_are_clamped_and_get_no_gradient(kind: KlKind) -> None:
    log_probs = torch.tensor([-100.0, 0.0], requires_grad=True)
    reference = torch.tensor([0.0, -100.0])
    values = kl_estimate(log_probs, reference, kind, ratio=torch.ones(2))
    bound = torch.tensor([-LOG_RATIO_BOUND, LOG_RATIO_BOUND], dtype=torch.float64)
    torch.testing.assert_close(values.double(), definition(kind, bound, torch.ones(2).double()))
    values.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [0.0, 0.0]


def test_gradient_of_unbiased_flows_through_the_ratio_too() -> None:
    log_probs = torch.tensor([-1.0], requires_grad=True)
    old, reference = torch.tensor([-1.25]), torch.tensor([-2.0])
    ratio = (log_probs - old).exp()
    kl_estimate(log_probs, reference, KlKind.unbiased, ratio=ratio).sum().backward()
    # d/dlp [r (e^{-d} − 1 + d)] = r (e^{-d} − 1 + d) + r (1 − e^{-d}) = r d
    assert log_probs.grad is not None
    assert log_probs.grad.item() == pytest.approx(float(torch.tensor(0.25).exp()), rel=1e-5)


def test_expectation_of_unbiased_under_the_old_policy_is_the_kl() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, old, reference = (torch.randn(6, generator=generator).double().log_softmax(0) for _ in range(3))
    value = kl_estimate(policy, reference, KlKind.unbiased, ratio=(policy - old).exp())
    expectation = (old.exp() * value).sum()
    torch.testing.assert_close(expectation, (policy.exp() * (policy - reference)).sum())
