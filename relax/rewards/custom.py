"""Custom rewards: import `package.module:function` and check what it returns."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from relax.config.errors import ConfigError
from relax.data.sample import Sample
from relax.rewards.calls import RewardError


def import_reward(path: str | None) -> Callable[[Sample], Any]:
    """The function that `reward.path` names.

    Raises:
        ConfigError: a path of another form, a module that does not import, or a name that is absent or not callable.
    """
    module_name, _, function_name = (path or "").partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"reward.path={path!r} must be 'package.module:function', for reward.kind=custom")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is foreign code: whatever it raises, the option is what to fix
        raise ConfigError(
            f"reward.path={path!r}: module {module_name!r} does not import ({type(error).__name__}: {error}); "
            "it must be on PYTHONPATH"
        ) from error
    function = vars(module).get(function_name)
    if function is None:
        names = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        raise ConfigError(f"reward.path={path!r}: {module_name} has no {function_name!r}; it has {names[:10]}")
    if not callable(function):
        raise ConfigError(f"reward.path={path!r}: {function_name} is {type(function).__name__}, not callable")
    return function


def parts_of(value: Any, sample: Sample) -> tuple[dict[str, float], float | None]:
    """(named parts, total or None) of a scorer's value: a number is the part `answer`; a dict holds parts, and its key
    `reward`, when there, is the total.

    Raises:
        RewardError: not a finite number, or a dict that is empty or holds something else; names the sample.
    """
    if not isinstance(value, dict):
        return {"answer": _number(value, "returned", sample)}, None
    if not value:
        raise RewardError(f"the reward returned an empty dict for sample {sample.index}; give at least one part")
    numbers = {str(key): _number(part, f"returned part {key!r}", sample) for key, part in value.items()}
    total = numbers.pop("reward", None)
    return numbers, total


def _number(value: Any, what: str, sample: Sample) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise RewardError(
            f"the reward {what} {value!r} for sample {sample.index}; it must be a finite number (or a dict of them)"
        )
    return float(value)
