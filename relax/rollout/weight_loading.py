"""Copy a `WeightBucket` into a torch model: all checks first, then the copies, so that a refusal changes nothing."""

from __future__ import annotations

import ctypes
import math

import torch

from relax.data.errors import nearest
from relax.data.weights import WeightBucket

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_bucket(parameters: dict[str, torch.Tensor], bucket: WeightBucket) -> int:
    """Overwrite `parameters` (by Hugging Face name, tied ones under both names) with the bucket; bytes copied.

    The bucket's memory may be read-only (Ray's shared memory): it is read in place.

    Raises:
        ValueError: an unknown name, a shape or dtype that does not fit, fields of different lengths, a byte count that
            does not add up, or two different values for tied parameters. Nothing is written then.
    """
    views = bucket_tensors(bucket)
    written: dict[int, tuple[str, torch.Tensor]] = {}
    for name, value in views.items():
        target = parameters.get(name)
        if target is None:
            raise ValueError(f"weight update: the model has no parameter {name!r}; {nearest(name, parameters)}")
        if value.shape != target.shape:
            raise ValueError(
                f"weight update: {name} has shape {tuple(value.shape)}, the model's is {tuple(target.shape)}"
            )
        if value.dtype != target.dtype:
            raise ValueError(
                f"weight update: {name} is {value.dtype}, the model's is {target.dtype}; "
                "trainer and engine must publish in the model's dtype (model.dtype)"
            )
        tied = written.setdefault(target.data_ptr(), (name, value))
        if tied[0] != name and not torch.equal(tied[1], value):
            raise ValueError(f"weight update: {tied[0]} and {name} are tied in the model but have different values")
    with torch.no_grad():
        for name, value in views.items():
            parameters[name].copy_(value)
    return bucket.data.nbytes


def bucket_tensors(bucket: WeightBucket) -> dict[str, torch.Tensor]:
    """Views of the bucket's memory by name. Read only: writing through them is undefined. They keep no reference:
    the bucket must outlive them.

    Raises:
        ValueError: fields of different lengths, an unknown dtype, a repeated name, a byte count that does not add up.
    """
    count = len(bucket.names)
    if not count == len(bucket.shapes) == len(bucket.dtypes) == len(set(bucket.names)):
        raise ValueError(
            f"weight bucket: {count} names ({len(set(bucket.names))} distinct), {len(bucket.shapes)} shapes, "
            f"{len(bucket.dtypes)} dtypes; these must be equal"
        )
    unknown = sorted(set(bucket.dtypes) - set(_DTYPES))
    if unknown:
        raise ValueError(f"weight bucket: dtypes {unknown} are unknown; allowed: {sorted(_DTYPES)}")
    sizes = [
        math.prod(shape) * _DTYPES[dtype].itemsize for shape, dtype in zip(bucket.shapes, bucket.dtypes, strict=True)
    ]
    if sum(sizes) != bucket.data.nbytes or not bucket.data.flags.c_contiguous:
        raise ValueError(f"weight bucket: shapes need {sum(sizes)} contiguous bytes, data has {bucket.data.nbytes}")
    if sum(sizes) == 0:
        return {name: torch.empty(shape) for name, shape in zip(bucket.names, bucket.shapes, strict=True)}
    # A ctypes array over the same memory: torch.frombuffer warns of NumPy's read-only flag, and only a copy obeys it.
    memory = (ctypes.c_uint8 * bucket.data.nbytes).from_address(bucket.data.ctypes.data)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    tensors, offset = {}, 0
    for name, shape, dtype_name, size in zip(bucket.names, bucket.shapes, bucket.dtypes, sizes, strict=True):
        dtype = _DTYPES[dtype_name]
        piece = flat[offset : offset + size]
        if (bucket.data.ctypes.data + offset) % dtype.itemsize or offset % dtype.itemsize:
            piece = piece.clone()  # unaligned (fp32 after an odd number of bf16 values): reinterpret a copy
        tensors[name] = piece.view(dtype).view(shape)
        offset += size
    return tensors
