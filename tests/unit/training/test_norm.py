from __future__ import annotations

import pytest
import torch
from megatron.core.transformer import TransformerConfig

from relax.training.norm import RMSNorm, RMSNormFunction

EPS = 1e-6


def make(dtype: torch.dtype, *, sequence_parallel: bool = False) -> tuple[RMSNorm, torch.Tensor]:
    """A norm with weights ≠ 1 and an input whose rows differ in size by orders of magnitude, one of them zero."""
    config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=1, params_dtype=dtype)
    config.sequence_parallel = sequence_parallel
    norm = RMSNorm(config, 16, eps=EPS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * torch.randn(16, generator=generator))
    x = torch.randn(7, 1, 4, 16, generator=generator) * 10.0 ** torch.arange(-3, 4)[:, None, None, None]
    x[0, 0, 0] = 0
    return norm, x.to(dtype).requires_grad_()


def test_values_and_gradients_equal_torchs_in_double() -> None:
    norm, x = make(torch.float32)
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    ours = norm(x)
    gradients = torch.autograd.grad((ours * upstream).sum(), (x, norm.weight))
    wide, weight = x.detach().double().requires_grad_(), norm.weight.detach().double().requires_grad_()
    expected = torch.rms_norm(wide, (16,), weight, EPS)
    expected_gradients = torch.autograd.grad((expected * upstream.double()).sum(), (wide, weight))
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(gradients, expected_gradients):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


def test_explicit_gradient_is_the_numerical_one() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, weight: RMSNormFunction.apply(x, weight, EPS), (x, weight))


def test_bf16_is_torchs_own() -> None:
    norm, x = make(torch.bfloat16)
    assert torch.equal(norm(x), torch.rms_norm(x, (16,), norm.weight, EPS))


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_weight_carries_the_sequence_parallel_mark(sequence_parallel: bool) -> None:
    norm, _ = make(torch.float32, sequence_parallel=sequence_parallel)
    assert norm.weight.sequence_parallel is sequence_parallel
