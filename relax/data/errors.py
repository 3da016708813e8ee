"""`DataError`: something in a dataset, a tokenizer or a model folder is wrong, said so that a person can act on it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DataError(ValueError):
    """The message names the option, the value found, what is allowed and the fix."""


def nearest(name: str, allowed: Iterable[str], *, limit: int = 3) -> str:
    """`did you mean 'a', 'b'?` for a mistyped name, or the list of allowed names when nothing is near."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=limit, cutoff=0.5)
    if close:
        return "did you mean " + ", ".join(repr(c) for c in close) + "?"
    shown = ", ".join(names[:20]) + (f", … ({len(names)} in all)" if len(names) > 20 else "")
    return f"known: {shown}"
