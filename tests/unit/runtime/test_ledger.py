"""The ledger: every sample ends exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.runtime.ledger import FINAL_STATES, Ledger, LedgerError


@given(st.lists(st.sampled_from([*FINAL_STATES, "filtered/zero_std"]), min_size=1, max_size=40))
def test_counts_add_up_when_every_sample_ends_once(states: list[str]) -> None:
    ledger = Ledger()
    ledger.hand_out("train", range(len(states)))
    for index, state in enumerate(states):
        ledger.close("train", [index], state)
    ledger.check()
    assert sum(ledger.state()["ended"].values()) == len(states)
    Ledger.from_state(ledger.state()).check()


def test_training_and_evaluation_ids_are_kept_apart() -> None:
    ledger = Ledger()
    ledger.hand_out("train", [0])
    ledger.hand_out("eval/a", [0])
    ledger.close("eval/a", [0], "evaluated")
    with pytest.raises(LedgerError, match="1 are open"):
        ledger.check()
    ledger.abandon()
    ledger.check()


def test_a_sample_cannot_end_twice_or_unknown_or_in_an_unknown_state() -> None:
    ledger = Ledger()
    ledger.hand_out("train", [0])
    with pytest.raises(LedgerError, match="handed out twice"):
        ledger.hand_out("train", [0])
    with pytest.raises(LedgerError, match="no final state"):
        ledger.close("train", [0], "lost")
    ledger.close("train", [0], "trained")
    with pytest.raises(LedgerError, match="not open"):
        ledger.close("train", [0], "trained")
