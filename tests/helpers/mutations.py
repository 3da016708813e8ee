"""Random changes of a config, for fuzzing: any field to any value of its type, sensible or not."""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
import typing
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from relax.config.schema import ArchConfig, RunConfig

INTEGERS = (-7, -1, 0, 1, 2, 3, 4, 7, 8, 33, 64, 1000, 10**9)
FLOATS = (-1.0, 0.0, 1e-9, 0.1, 0.5, 0.99, 1.0, 1.5, 2.0, 1e6, float("inf"), float("nan"))
TEXTS = ("", "x", "reverse", "nosuch", "/nowhere", "{prompt}", "(", "a.b:c", "1-3")


def leaf_types(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, type) of every field that is not a nested dataclass or a mapping."""
    hints = typing.get_type_hints(type(config))
    for item in dataclasses.fields(config):
        path, value = f"{prefix}{item.name}", vars(config)[item.name]
        if value is None and path == "model.arch":
            value = ArchConfig()
        if dataclasses.is_dataclass(value):
            yield from leaf_types(value, f"{path}.")
        elif not isinstance(value, (dict, list)):
            yield path, hints[item.name]


def values_of(kind: Any) -> list[Any]:
    """Values to try for a type."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return [value for part in typing.get_args(kind) for value in values_of(part)]
    if kind is type(None):
        return [None]
    if kind is bool:
        return [False, True]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)
    return list({int: INTEGERS, float: FLOATS, str: TEXTS}.get(kind, ()))


def put(config: Any, path: str, value: Any) -> None:
    """Set the field at a dotted path; a path below an absent optional part is left alone."""
    *parents, leaf = path.split(".")
    for name in parents:
        config = vars(config)[name]
        if config is None:
            return
    setattr(config, leaf, value)


def mutations(base: RunConfig, *, most: int = 5) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """1 to `most` changes of different fields of `base`."""
    pairs = [(path, value) for path, kind in leaf_types(base) for value in values_of(kind)]
    return st.lists(st.sampled_from(pairs), min_size=1, max_size=most, unique_by=lambda pair: pair[0])


def mutated(base: RunConfig, changes: list[tuple[str, Any]]) -> RunConfig:
    """A copy of `base` with the changes."""
    config = copy.deepcopy(base)
    for path, value in changes:
        put(config, path, value)
    return config
