"""The ledger: every sample handed out ends in exactly one state, and at the end of a run the counts add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

FINAL_STATES = ("trained", "filtered", "evaluated", "aborted", "failed")
"""`filtered` carries its reason as `filtered/<reason>`."""


class LedgerError(RuntimeError):
    """A sample was closed twice, never handed out, or never closed."""


class Ledger:
    """Life of a sample: `handed out → one of FINAL_STATES`."""

    def __init__(self, counts: dict[str, int] | None = None, handed_out: int = 0) -> None:
        self._open: set[tuple[str, int]] = set()
        self._counts: Counter[str] = Counter(counts or {})
        self._handed_out = handed_out

    def hand_out(self, kind: str, indices: Iterable[int]) -> None:
        """Record samples as being worked on. `kind` keeps training and evaluation ids apart."""
        for index in indices:
            key = (kind, index)
            if key in self._open:
                raise LedgerError(f"sample {key} was handed out twice")
            self._open.add(key)
            self._handed_out += 1

    def close(self, kind: str, indices: Iterable[int], state: str) -> None:
        """Record the one final state of samples."""
        if state.split("/")[0] not in FINAL_STATES:
            raise LedgerError(f"{state!r} is no final state (allowed: {', '.join(FINAL_STATES)})")
        for index in indices:
            key = (kind, index)
            if key not in self._open:
                raise LedgerError(f"sample {key} ended as {state} but is not open")
            self._open.remove(key)
            self._counts[state] += 1

    def abandon(self, state: str = "aborted") -> None:
        """Close everything still open (an interrupted run)."""
        self._counts[state] += len(self._open)
        self._open.clear()

    def check(self) -> None:
        """Raise LedgerError unless every sample has ended and the counts add up."""
        closed = sum(self._counts.values())
        if self._open or closed != self._handed_out:
            some = sorted(self._open)[:5]
            raise LedgerError(
                f"{self._handed_out} samples were handed out, {closed} ended, {len(self._open)} are open "
                f"(first: {some})"
            )

    def state(self) -> dict[str, Any]:
        """JSON form, for `ledger.json` and checkpoints."""
        return {"handed_out": self._handed_out, "open": len(self._open), "ended": dict(sorted(self._counts.items()))}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Ledger:
        """A ledger that goes on from a checkpoint (nothing open)."""
        return cls(counts=state["ended"], handed_out=state["handed_out"])
