from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax.rollout.sampling import counter_uniforms, draw_tokens, mix_seeds, splitmix64


def test_splitmix64_matches_the_published_sequence() -> None:
    # First outputs of Vigna's splitmix64.c for state 0: the state is advanced by the golden ratio before each output.
    states = np.array([0, 0x9E3779B97F4A7C15], np.uint64)
    assert [hex(v) for v in splitmix64(states).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


@given(st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=8), st.integers(1, 20))
def test_uniforms_depend_on_seed_and_position_alone(seeds: list[int], length: int) -> None:
    together = counter_uniforms(seeds, length)
    assert ((together >= 0) & (together < 1)).all()
    for i, seed in enumerate(seeds):
        assert (counter_uniforms([seed], length + 3)[0, :length] == together[i]).all()


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    draws = counter_uniforms(range(2000), 50)  # neighbouring seeds are the common case
    assert abs(draws.mean() - 0.5) < 0.005
    assert abs(draws.var() - 1 / 12) < 0.002
    for a, b in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.015
    counts = np.histogram(draws, bins=64, range=(0, 1))[0]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 110  # chi-square, 63 degrees: p < 0.001 above 103


def test_mix_seed_tells_the_order_of_its_parts() -> None:
    assert mix_seeds(1, [2]) != mix_seeds(2, [1])
    assert len(set(mix_seeds(0, range(10_000)))) == 10_000


def test_frequencies_follow_the_probabilities() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    uniforms = torch.from_numpy(counter_uniforms(range(20_000), 1)[:, 0])
    drawn = draw_tokens(probs.log().expand(20_000, 4), uniforms)
    frequencies = torch.bincount(drawn, minlength=4) / 20_000
    assert frequencies[1] == 0
    assert torch.allclose(frequencies, probs, atol=0.012)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 8), st.floats(0.05, 1.0))
def test_top_k_and_top_p_keep_the_likely_ids(seed: int, vocab: int, top_k: int, top_p: float) -> None:
    log_probs = torch.log_softmax(torch.randn(5, vocab, generator=torch.Generator().manual_seed(seed)) * 3, -1)
    uniforms = torch.from_numpy(counter_uniforms([seed], 5)[0])
    drawn = draw_tokens(log_probs, uniforms, top_k=top_k, top_p=top_p)
    for row, token in zip(log_probs.exp().double(), drawn.tolist(), strict=True):
        likely = row.sort(descending=True).values
        kept = likely[: min(top_k, vocab)]
        more_likely = kept[kept > row[token]].sum()
        assert row[token] >= kept[-1]
        assert more_likely < top_p * kept.sum() + 1e-9


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-52])
def test_extreme_uniforms_stay_inside_the_support(u: float) -> None:
    log_probs = torch.tensor([[0.0, 1 / 3, 1 / 3, 1 / 3, 0.0]]).log().expand(2, 5)
    drawn = draw_tokens(log_probs, torch.full((2,), u, dtype=torch.float64))
    assert set(drawn.tolist()) <= {1, 2, 3}
