"""`WeightBucket`: how parameters travel from the trainer to an engine. Knows neither of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class WeightBucket:
    """Some tensors of a model, flattened into one byte array so that shared memory carries them without a copy."""

    names: list[str]
    """Hugging Face parameter names."""
    shapes: list[tuple[int, ...]]
    dtypes: list[str]
    """torch dtype names (`float32`, `bfloat16`)."""
    data: npt.NDArray[np.uint8]
    """Bytes of all tensors, one after the other."""
