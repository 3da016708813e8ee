from __future__ import annotations

import copy

import pytest
import torch

from relax.training.optimizer import GroupStepAdam

SHAPES = ((7, 5), (5,), (3, 2, 4))


def parameters(seed: int) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 10.0 ** (step % 3 - 1)


def groups(params: list[torch.nn.Parameter], weight_decay: float) -> list[dict]:
    return [{"params": params[:2], "weight_decay": weight_decay}, {"params": params[2:], "weight_decay": 0.0}]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.8, 0.999)])
def test_ten_steps_equal_torchs_adamw(weight_decay: float, betas: tuple[float, float]) -> None:
    ours, theirs = parameters(0), parameters(0)
    optimizer = GroupStepAdam(groups(ours, weight_decay), lr=3e-2, betas=betas, eps=1e-8)
    reference = torch.optim.AdamW(groups(theirs, weight_decay), lr=3e-2, betas=betas, eps=1e-8)
    for step in range(10):
        for params in (ours, theirs):
            set_gradients(params, step)
        optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_coupled_decay_equals_torchs_adam() -> None:
    ours, theirs = parameters(1), parameters(1)
    optimizer = GroupStepAdam(ours, lr=1e-2, weight_decay=0.1, adam_w_mode=False)
    reference = torch.optim.Adam(theirs, lr=1e-2, weight_decay=0.1)
    for step in range(10):
        for params in (ours, theirs):
            set_gradients(params, step)
        optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_state_round_trip_continues_bit_exactly() -> None:
    params = parameters(2)
    optimizer = GroupStepAdam(params, lr=1e-2)
    for step in range(3):
        set_gradients(params, step)
        optimizer.step()
    other = [torch.nn.Parameter(parameter.detach().clone()) for parameter in params]
    loaded = GroupStepAdam(other, lr=1e-2)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3, 6):
        for group in (params, other):
            set_gradients(group, step)
        optimizer.step()
        loaded.step()
    assert all(torch.equal(a, b) for a, b in zip(params, other))
    assert loaded.param_groups[0]["step"] == 6


def test_parameters_without_a_gradient_stay() -> None:
    params = parameters(3)
    before = [parameter.detach().clone() for parameter in params]
    optimizer = GroupStepAdam(params, lr=1e-2, weight_decay=0.1)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before))
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    assert not torch.equal(params[0], before[0])
    assert torch.equal(params[1], before[1])


def test_zero_gradient_moves_nothing_but_decay() -> None:
    params = parameters(4)
    before = params[0].detach().clone()
    for parameter in params:
        parameter.grad = torch.zeros_like(parameter)
    GroupStepAdam(params, lr=1e-2, weight_decay=0.5).step()
    torch.testing.assert_close(params[0].detach(), before * (1 - 0.005))
