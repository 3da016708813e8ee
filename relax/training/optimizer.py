"""Megatron's optimizer and learning-rate schedule, over an Adam with the state layout Megatron expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from relax.config.megatron_args import optimizer_config_args
from relax.config.schema import RunConfig

ENDLESS_DECAY_STEPS = 1_000_000_000
"""Decay length of a schedule that does not decay."""


class GroupStepAdam(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) with one `step` a parameter group, as Apex's and TE's FusedAdam.

    Megatron's checkpoints are right for that layout only: with torch's AdamW a loaded optimizer shares one step
    tensor among all parameters and then trains wrongly, without an error.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        **_: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._decoupled = adam_w_mode

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            step = group["step"] = int(group.get("step", 0)) + 1
            for p in params:
                if "exp_avg" not in self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
                    self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
            self._update(group, params, step)

    def _update(self, group: dict[str, Any], params: list[torch.Tensor], step: int) -> None:
        beta1, beta2 = group["betas"]
        lr, decay = group["lr"], group["weight_decay"]
        gradients: Sequence[torch.Tensor] = [p.grad for p in params if p.grad is not None]
        if decay and self._decoupled:
            torch._foreach_mul_(params, 1 - lr * decay)
        elif decay:
            gradients = torch._foreach_add(list(gradients), params, alpha=decay)
        first = [self.state[p]["exp_avg"] for p in params]
        second = [self.state[p]["exp_avg_sq"] for p in params]
        torch._foreach_lerp_(first, list(gradients), 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, list(gradients), list(gradients), value=1 - beta2)
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, (1 - beta2**step) ** 0.5)
        torch._foreach_add_(denominator, group["eps"])
        torch._foreach_addcdiv_(params, first, denominator, value=-lr / (1 - beta1**step))


def use_group_step_adam() -> None:
    """Let Megatron build `GroupStepAdam` where neither Apex nor TransformerEngine is installed."""
    import megatron.core.optimizer as optimizer_module
    import megatron.core.optimizer.distrib_optimizer as distributed_module

    if not distributed_module.HAVE_APEX_OR_TE:
        optimizer_module.USING_PYTORCH_OPTIMIZER = False
        optimizer_module.Adam = GroupStepAdam
        distributed_module.HAVE_APEX_OR_TE = True
        distributed_module.Adam = GroupStepAdam


def build_optimizer(model: DistributedDataParallel, config: RunConfig, *, lr: float) -> MegatronOptimizer:
    """Megatron's Adam over the model; fp32 masters under bf16."""
    use_group_step_adam()
    args = optimizer_config_args(config, lr=lr)
    args["params_dtype"] = getattr(torch, args["params_dtype"])
    optimizer = get_megatron_optimizer(OptimizerConfig(**args), [model])
    model.module.config.grad_scale_func = optimizer.scale_loss
    return optimizer


def set_constant_rate(optimizer: MegatronOptimizer, config: RunConfig, *, lr: float) -> None:
    """Fix learning rate and weight decay of a phase that has no schedule."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        # as the schedule does: norms and biases do not decay
        group["weight_decay"] = config.train.weight_decay * group["wd_mult"]


@torch.no_grad()
def load_optimizer(optimizer: MegatronOptimizer, state: dict[str, Any]) -> None:
    """Take moments, masters and step counts from `state`; rates, betas and decay stay those of the config."""
    configured = [
        {name: value for name, value in group.items() if name not in ("params", "step")}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(state)
    for group, values in zip(optimizer.param_groups, configured):
        group.update(values)


def build_schedule(
    optimizer: MegatronOptimizer, config: RunConfig, *, total_steps: int | None
) -> OptimizerParamScheduler:
    """Megatron's schedule over optimizer steps.

    Args:
        optimizer: its learning rates are set.
        config: `train.lr` and `train.lr_schedule`.
        total_steps: optimizer steps of the whole run, the end of the decay where the config names none; None while
            it is not known yet.

    Raises:
        ValueError: a decaying schedule without an end after its warm-up.
    """
    schedule = config.train.lr_schedule
    style = schedule.kind.value
    decay_steps = schedule.decay_steps or total_steps
    if style == "constant" or decay_steps is None:
        decay_steps = ENDLESS_DECAY_STEPS
    if decay_steps <= schedule.warmup_steps:
        raise ValueError(
            f"train.lr_schedule.kind={style} ends after {decay_steps} optimizer steps, and its warm-up takes "
            f"{schedule.warmup_steps}: set train.lr_schedule.decay_steps above it"
        )
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=config.train.lr,
        min_lr=schedule.min_lr,
        lr_warmup_steps=schedule.warmup_steps,
        lr_decay_steps=decay_steps,
        lr_decay_style=style,
        start_wd=config.train.weight_decay,
        end_wd=config.train.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        # a checkpoint tells how many steps were taken; the shape is the config's
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )
