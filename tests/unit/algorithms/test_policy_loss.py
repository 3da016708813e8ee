from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from relax.algorithms.policy_loss import PolicyTokens, finish_metrics, policy_loss
from relax.config.schema import (
    AlgorithmConfig,
    ImportanceConfig,
    ImportanceKind,
    KlConfig,
    KlKind,
    LossConfig,
    LossKind,
)

MASK = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
SAMPLES = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
OPTIONAL = ("rollout_log_probs", "ref_log_probs", "entropy")


def make_tokens(**changes: torch.Tensor | None) -> PolicyTokens:
    """Eight tokens of three samples, two of them masked, with ratios on both sides of the clip."""
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(8, generator=generator) * 3
    log_probs = old + torch.linspace(-0.6, 0.6, 8)
    tokens = PolicyTokens(
        log_probs=log_probs.requires_grad_(),
        old_log_probs=old,
        advantages=torch.tensor([1.0, -1.0, 2.0, 0.5, -2.0, 1.0, 1.5, -0.5]),
        weights=MASK / MASK.sum(),
        sample_index=SAMPLES,
        rollout_log_probs=old + 0.3 * torch.randn(8, generator=generator),
        ref_log_probs=old + 0.5 * torch.randn(8, generator=generator),
        entropy=torch.rand(8, generator=generator).requires_grad_(),
    )
    return dataclasses.replace(tokens, **changes)  # type: ignore[arg-type]


def loss_and_gradient(tokens: PolicyTokens, config: AlgorithmConfig) -> tuple[float, torch.Tensor]:
    tokens.log_probs.grad = None
    loss, _ = policy_loss(tokens, config)
    loss.backward()
    assert tokens.log_probs.grad is not None
    return float(loss.detach()), tokens.log_probs.grad.clone()


def token_losses(ratios: list[float], advantages: list[float], **options: object) -> list[float]:
    """Per-token losses of one-token samples with these ratios, all else off."""
    result = []
    for ratio, advantage in zip(ratios, advantages):
        tokens = PolicyTokens(
            log_probs=torch.tensor([math.log(ratio)], requires_grad=True),
            old_log_probs=torch.zeros(1),
            advantages=torch.tensor([advantage]),
            weights=torch.ones(1),
            sample_index=torch.zeros(1, dtype=torch.int64),
        )
        result.append(float(policy_loss(tokens, AlgorithmConfig(loss=LossConfig(**options)))[0].detach()))  # type: ignore[arg-type]
    return result


def test_clip_is_asymmetric_and_one_sided() -> None:
    ratios, advantages = [0.5, 0.5, 2.0, 2.0, 1.1], [1.0, -1.0, 1.0, -1.0, 1.0]
    losses = token_losses(ratios, advantages, eps_clip=0.2, eps_clip_high=0.28)
    assert losses == pytest.approx([-0.5, 0.8, -1.28, 2.0, -1.1])


def test_dual_clip_bounds_negative_advantages_only() -> None:
    ratios, advantages = [9.0, 9.0, 2.0, 0.1], [-2.0, 2.0, -1.0, -1.0]
    losses = token_losses(ratios, advantages, dual_clip=3.0)
    assert losses == pytest.approx([6.0, -2.56, 2.0, 0.8])


def test_clipped_tokens_get_no_gradient_and_are_counted() -> None:
    tokens = make_tokens()
    _, gradient = loss_and_gradient(tokens, AlgorithmConfig())
    ratio = (tokens.log_probs - tokens.old_log_probs).exp().detach()
    clipped = ((ratio > 1.28) & (tokens.advantages > 0)) | ((ratio < 0.8) & (tokens.advantages < 0))
    expected = torch.where(clipped | (MASK == 0), 0.0, -tokens.advantages * ratio * tokens.weights)
    torch.testing.assert_close(gradient, expected)
    fraction = policy_loss(tokens, AlgorithmConfig())[1]["pg_clipfrac"]
    assert fraction == pytest.approx(float((clipped * tokens.weights).sum()))
    assert fraction > 0


def test_tokens_under_the_dual_clip_get_no_gradient() -> None:
    tokens = make_tokens(
        log_probs=torch.full((8,), 1.5).requires_grad_(), old_log_probs=torch.zeros(8), advantages=-torch.ones(8)
    )
    _, gradient = loss_and_gradient(tokens, AlgorithmConfig(loss=LossConfig(dual_clip=2.0)))
    assert (gradient == 0).all()


def test_cispo_gradient_is_the_clipped_weight_times_the_advantage() -> None:
    tokens = make_tokens()
    _, gradient = loss_and_gradient(tokens, AlgorithmConfig(loss=LossConfig(kind=LossKind.cispo)))
    ratio = (tokens.log_probs - tokens.old_log_probs).exp().detach().clamp(0.8, 1.28)
    torch.testing.assert_close(gradient, -ratio * tokens.advantages * tokens.weights)


def test_gspo_clips_the_geometric_mean_ratio_of_each_sample() -> None:
    tokens = make_tokens(advantages=torch.tensor([1.0, 1, 1, -2, -2, -2, -2, 3]))
    config = AlgorithmConfig(loss=LossConfig(kind=LossKind.gspo, eps_clip=0.05, eps_clip_high=0.1))
    loss, _ = loss_and_gradient(tokens, config)
    log_ratio = (tokens.log_probs - tokens.old_log_probs).detach()
    expected = 0.0
    for sample in range(3):
        valid = (sample == SAMPLES) & (MASK > 0)
        ratio = log_ratio[valid].mean().exp()
        advantage = tokens.advantages[valid][0]
        value = torch.maximum(-ratio * advantage, -ratio.clamp(0.95, 1.1) * advantage)
        expected += float(value * tokens.weights[valid].sum())
    assert loss == pytest.approx(expected, rel=1e-5)


def test_at_the_old_policy_all_kinds_have_the_policy_gradient() -> None:
    gradients = []
    for kind in LossKind:
        tokens = make_tokens(
            log_probs=make_tokens().old_log_probs.clone().requires_grad_(),
            advantages=torch.tensor([1.0, 1, 1, -2, -2, -2, -2, 3]),
        )
        gradients.append(loss_and_gradient(tokens, AlgorithmConfig(loss=LossConfig(kind=kind)))[1])
    expected = -torch.tensor([1.0, 1, 1, -2, -2, -2, -2, 3]) * MASK / MASK.sum()
    for gradient in gradients:
        torch.testing.assert_close(gradient, expected)


ALL_TERMS = {
    "kl": KlConfig(kind=KlKind.unbiased, loss_coef=0.1),
    "importance": ImportanceConfig(kind=ImportanceKind.sequence, low=1e-6, high=1e6),
}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("kind", list(LossKind))
def test_masked_tokens_contribute_nothing_whatever_they_hold(kind: LossKind, bad: float) -> None:
    config = AlgorithmConfig(loss=LossConfig(kind=kind, entropy_coef=0.01, dual_clip=3.0), **ALL_TERMS)  # type: ignore[arg-type]
    clean = make_tokens()
    names = ("log_probs", "old_log_probs", "advantages", *OPTIONAL)
    spoiled = {name: torch.where(MASK > 0, getattr(clean, name).detach(), bad) for name in names}
    spoiled |= {name: spoiled[name].requires_grad_() for name in ("log_probs", "entropy")}
    dirty = make_tokens(**spoiled)
    expected, expected_gradient = loss_and_gradient(clean, config)
    loss, gradient = loss_and_gradient(dirty, config)
    assert loss == expected
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=0)
    assert (gradient[MASK == 0] == 0).all()
    metrics = (policy_loss(tokens, config)[1] for tokens in (clean, dirty))
    assert next(metrics) == next(metrics)


def test_entropy_and_kl_terms_add_up() -> None:
    tokens = make_tokens()
    weights = tokens.weights
    base = float(policy_loss(tokens, AlgorithmConfig())[0].detach())
    config = AlgorithmConfig(loss=LossConfig(entropy_coef=0.2), kl=KlConfig(kind=KlKind.k2, loss_coef=0.5))
    loss, metrics = policy_loss(tokens, config)
    assert tokens.ref_log_probs is not None
    assert tokens.entropy is not None
    kl = float(((tokens.log_probs - tokens.ref_log_probs).detach().square() / 2 * weights).sum())
    entropy = float((tokens.entropy.detach() * weights).sum())
    assert float(loss.detach()) == pytest.approx(base + 0.5 * kl - 0.2 * entropy, rel=1e-5)
    assert metrics["kl_loss"] == pytest.approx(kl, rel=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert metrics["pg_loss"] == pytest.approx(base, rel=1e-5)
    loss.backward()
    assert tokens.entropy.grad is not None
    torch.testing.assert_close(tokens.entropy.grad, -0.2 * weights)


def test_kl_term_uses_token_ratios_under_gspo_too() -> None:
    tokens = make_tokens(advantages=torch.zeros(8))
    values = {
        kind: policy_loss(
            tokens,
            AlgorithmConfig(loss=LossConfig(kind=kind), kl=KlConfig(kind=KlKind.unbiased, loss_coef=1.0)),
        )[1]["kl_loss"]
        for kind in (LossKind.clipped, LossKind.gspo)
    }
    assert values[LossKind.gspo] == values[LossKind.clipped]


@pytest.mark.parametrize(
    ("config", "field", "option"),
    [
        (AlgorithmConfig(kl=KlConfig(loss_coef=0.1)), "ref_log_probs", "algorithm.kl.loss_coef"),
        (
            AlgorithmConfig(importance=ImportanceConfig(kind=ImportanceKind.tis)),
            "rollout_log_probs",
            "algorithm.importance.kind",
        ),
    ],
)
def test_missing_field_is_an_error_that_names_the_option(config: AlgorithmConfig, field: str, option: str) -> None:
    with pytest.raises(ValueError, match=rf"{option} needs {field}, and the batch carries none"):
        policy_loss(make_tokens(**{field: None}), config)


def test_entropy_coefficient_without_entropy_is_an_error() -> None:
    config = AlgorithmConfig(loss=LossConfig(entropy_coef=0.1))
    with pytest.raises(ValueError, match=r"algorithm\.loss\.entropy_coef needs entropy"):
        policy_loss(make_tokens(entropy=None), config)


def test_metrics_of_parts_add_up_to_the_whole() -> None:
    tokens = make_tokens()
    config = AlgorithmConfig(loss=LossConfig(entropy_coef=0.1), **ALL_TERMS)  # type: ignore[arg-type]
    whole = policy_loss(tokens, config)[1]
    parts = []
    for rows in (slice(0, 3), slice(3, 8)):
        fields = {item.name: getattr(tokens, item.name) for item in dataclasses.fields(tokens)}
        parts.append(policy_loss(PolicyTokens(**{n: v[rows] for n, v in fields.items()}), config)[1])
    for name, value in whole.items():
        assert float(parts[0][name] + parts[1][name]) == pytest.approx(float(value), rel=1e-5, abs=1e-7), name


def test_importance_weight_scales_each_tokens_loss() -> None:
    tokens = make_tokens()
    config = AlgorithmConfig(importance=ImportanceConfig(kind=ImportanceKind.tis, cap=1.1))
    assert tokens.rollout_log_probs is not None
    weight = (tokens.old_log_probs - tokens.rollout_log_probs).exp().clamp_max(1.1)
    _, plain = loss_and_gradient(tokens, AlgorithmConfig())
    _, corrected = loss_and_gradient(tokens, config)
    torch.testing.assert_close(corrected, plain * weight)


def test_batch_without_valid_token_has_zero_loss_with_a_graph() -> None:
    tokens = make_tokens(weights=torch.zeros(8))
    config = AlgorithmConfig(loss=LossConfig(entropy_coef=0.1), **ALL_TERMS)  # type: ignore[arg-type]
    loss, gradient = loss_and_gradient(tokens, config)
    assert loss == 0
    assert (gradient == 0).all()


def test_finish_metrics_gives_the_effective_sample_size() -> None:
    weights = torch.tensor([0.5, 1.0, 2.0, 2.0])
    sums = {"loss": 1.0, "tis_weight": float(weights.mean()), "tis_weight_square": float(weights.square().mean())}
    finished = finish_metrics(sums)
    expected = float(weights.sum() ** 2 / weights.square().sum() / 4)
    assert finished == {"loss": 1.0, "tis_ess": pytest.approx(expected)}
    assert finish_metrics({"tis_weight": 1.0, "tis_weight_square": 1.0}) == {"tis_ess": 1.0}
    assert finish_metrics({"tis_weight": 0.0, "tis_weight_square": 0.0}) == {"tis_ess": 0.0}
    assert finish_metrics({"loss": 2.0}) == {"loss": 2.0}
