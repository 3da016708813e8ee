"""The whole Megatron path (packing, model, loss, schedule) against a plain PyTorch loop over sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from relax.config.schema import Reduction, RunConfig
from relax.data.batch import TrainBatch
from tests.helpers import training
from tests.helpers.workers import run_ranks

GRADIENT_TOLERANCE = 5e-6
OVERRIDES = ("train.max_tokens_per_gpu=50", "rollout.temperature=0.8", training.STILL_LR)
ALL_TERMS = (
    "algorithm.kl.kind=k3",
    "algorithm.kl.loss_coef=0.1",
    "algorithm.loss.entropy_coef=0.02",
    "algorithm.loss.dual_clip=1.5",
)


def plain_grpo(model: Any, batch: TrainBatch, config: RunConfig) -> torch.Tensor:
    """GRPO as the papers write it: one sequence after the other, nothing packed, nothing weighted."""
    algorithm, loss = config.algorithm, config.algorithm.loss
    losses = []
    for row, tokens in enumerate(training.sequences(batch)):
        span = slice(*batch.response_offsets[row : row + 2].tolist())

        def field(values: Any, span: slice = span) -> torch.Tensor:
            return torch.from_numpy(values[span])

        first = len(tokens) - int(batch.response_lengths[row])
        log_policy = (model(tokens[None]).logits[0, first - 1 : -1] / config.rollout.temperature).log_softmax(-1)
        log_probs = log_policy.gather(1, tokens[first:, None])[:, 0]
        ratio = (log_probs - field(batch.old_log_probs)).exp()
        advantages = field(batch.advantages)
        token_losses = torch.maximum(
            -ratio * advantages, -ratio.clamp(1 - loss.eps_clip, 1 + loss.eps_clip_high) * advantages
        )
        if loss.dual_clip is not None:
            bounded = torch.minimum(token_losses, -loss.dual_clip * advantages)
            token_losses = torch.where(advantages < 0, bounded, token_losses)
        if algorithm.kl.loss_coef:
            log_ratio = field(batch.ref_log_probs) - log_probs
            token_losses = token_losses + algorithm.kl.loss_coef * (log_ratio.exp() - log_ratio - 1)
        entropy = -(log_policy.exp() * log_policy).sum(-1)
        token_losses = token_losses - loss.entropy_coef * entropy
        losses.append(token_losses[field(batch.loss_mask) > 0])
    if loss.reduction is Reduction.token_mean:
        return torch.cat(losses).mean()
    return torch.stack([values.mean() for values in losses if len(values)]).mean()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training.make_model(training.make_config(), tmp_path_factory.mktemp("model") / "source")


@pytest.fixture(scope="module")
def batch(source: Path) -> TrainBatch:
    made = training.make_batch(num_samples=11)
    # one sample without a valid token, which sample_mean must not count
    offsets = made.response_offsets
    made.loss_mask[offsets[3] : offsets[4]] = 0
    with torch.no_grad():
        current = torch.cat(training.reference_log_probs(training.hf_model(source), made, temperature=0.8))
    return training.with_old_log_probs(made, current.numpy())


@pytest.mark.parametrize("terms", [(), ALL_TERMS], ids=["clipped", "all_terms"])
@pytest.mark.parametrize("reduction", list(Reduction), ids=lambda item: item.value)
def test_loss_and_gradients_equal_the_plain_loop(
    reduction: Reduction, terms: tuple[str, ...], source: Path, batch: TrainBatch
) -> None:
    config = training.make_config(*OVERRIDES, *terms, f"algorithm.loss.reduction={reduction.value}")
    ((steps, gradients, _),) = run_ranks(training.train_steps, 1, config, source, batch, 1)
    model = training.hf_model(source)
    expected = plain_grpo(model, batch, config)
    expected.backward()
    assert steps[0].num_micro_batches > 2
    assert 0.1 < steps[0].metrics["pg_clipfrac"] < 0.9
    assert steps[0].metrics["loss"] == pytest.approx(float(expected.detach()), abs=2e-6)
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert max(float(value.abs().max()) for value in theirs.values()) > 0.01
    assert training.largest_difference(training.as_tensors(gradients), theirs) < GRADIENT_TOLERANCE
    norm = torch.stack([value.norm() for value in theirs.values()]).norm()
    assert steps[0].grad_norm == pytest.approx(float(norm), rel=1e-5)


def test_loss_and_gradients_are_invariant_to_the_token_budget(source: Path, batch: TrainBatch) -> None:
    config = training.make_config(*OVERRIDES, *ALL_TERMS)
    budgets = [10_000, 1, 13, 29, 40, 77, 120]
    ((first, gradients), *others) = run_ranks(training.gradients_at_budgets, 1, config, source, batch, budgets)[0]
    counts = {step.num_micro_batches for step, _ in [(first, gradients), *others]}
    assert {1, batch.num_samples} <= counts
    assert len(counts) >= 4
    for step, other in others:
        assert step.metrics == pytest.approx(first.metrics, abs=1e-6)
        assert step.grad_norm == pytest.approx(first.grad_norm, rel=1e-5)
        difference = training.largest_difference(training.as_tensors(other), training.as_tensors(gradients))
        assert difference < 1e-6


def test_gradients_are_those_of_this_step_alone(source: Path, batch: TrainBatch) -> None:
    """Nothing is left over from a step before: the second and the third time give the first's gradients."""
    config = training.make_config(*OVERRIDES)
    results = run_ranks(training.gradients_at_budgets, 1, config, source, batch, [50, 50, 50])[0]
    first = training.as_tensors(results[0][1])
    for _, gradients in results[1:]:
        assert training.largest_difference(training.as_tensors(gradients), first) == 0.0


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen2_untied", "llama_scaled"])
def test_other_families_have_the_gradients_of_transformers(family: str, tmp_path: Path) -> None:
    config = training.make_config(*training.FAMILIES[family], *OVERRIDES)
    source = training.make_model(config, tmp_path / "source")
    model = training.hf_model(source)
    made = training.make_batch()
    with torch.no_grad():
        current = torch.cat(training.reference_log_probs(model, made, temperature=0.8))
    made = training.with_old_log_probs(made, current.numpy())
    ((steps, gradients, _),) = run_ranks(training.train_steps, 1, config, source, made, 1)
    expected = plain_grpo(model, made, config)
    expected.backward()
    assert steps[0].metrics["loss"] == pytest.approx(float(expected.detach()), abs=2e-6)
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert training.largest_difference(training.as_tensors(gradients), theirs) < GRADIENT_TOLERANCE
