"""Rotary positions: what each scaling keeps and what it stretches. Their exact values: test_families.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.model.operators import rotate
from prefixcache_worker.model.rope import (
    RotaryTable,
    divided_rope,
    linear_rope,
    llama3_rope,
    plain_rope,
    yarn_rope,
)

pytestmark = pytest.mark.usefixtures("one_thread")

THETA, HEAD_DIM, FACTOR, LENGTH = 10_000.0, 64, 8.0, 512
PLAIN = plain_rope(THETA, HEAD_DIM)
LLAMA3 = llama3_rope(
    THETA, HEAD_DIM, factor=FACTOR, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=LENGTH
)
YARN = yarn_rope(THETA, HEAD_DIM, factor=FACTOR, original_context_length=LENGTH)
ROPES = {
    "plain": PLAIN,
    "linear": linear_rope(THETA, HEAD_DIM, factor=FACTOR),
    "llama3": LLAMA3,
    "yarn": YARN,
}
TABLES = {
    name: RotaryTable(rope, num_positions=1000, device=torch.device("cpu")) for name, rope in ROPES.items()
}


def test_plain_frequencies_fall_from_one_in_a_geometric_row():
    assert PLAIN.frequencies[0] == 1.0
    ratios = [b / a for a, b in zip(PLAIN.frequencies, PLAIN.frequencies[1:], strict=False)]
    assert ratios == pytest.approx([THETA ** (-2 / HEAD_DIM)] * (HEAD_DIM // 2 - 1), rel=1e-5)


@pytest.mark.parametrize("rope", [LLAMA3, YARN], ids=["llama3", "yarn"])
def test_fast_pairs_keep_their_frequency_and_slow_ones_are_stretched(rope):
    kept = [scaled / plain for scaled, plain in zip(rope.frequencies, PLAIN.frequencies, strict=True)]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] == 1.0
    assert kept[-1] == pytest.approx(1 / FACTOR)
    assert any(1 / FACTOR < share < 1.0 for share in kept[1:-1])


def test_llama3_mixes_between_one_and_four_turns_of_the_original_context():
    for scaled, plain in zip(LLAMA3.frequencies, PLAIN.frequencies, strict=True):
        num_turns = LENGTH * plain / (2 * math.pi)
        if num_turns >= 4:
            assert scaled == plain
        elif num_turns <= 1:
            assert scaled == pytest.approx(plain / FACTOR)
        else:
            assert plain / FACTOR < scaled < plain


def test_a_factor_of_one_stretches_nothing():
    assert linear_rope(THETA, HEAD_DIM, factor=1.0) == PLAIN
    assert divided_rope(THETA, HEAD_DIM, divisors=[1.0] * (HEAD_DIM // 2)) == PLAIN
    yarn = yarn_rope(THETA, HEAD_DIM, factor=1.0, original_context_length=LENGTH)
    assert yarn.frequencies == pytest.approx(PLAIN.frequencies)
    assert yarn.amplitude == 1.0


def test_yarn_raises_the_amplitude_with_the_logarithm_of_the_factor():
    assert YARN.amplitude == pytest.approx(0.1 * math.log(FACTOR) + 1)
    assert (
        yarn_rope(THETA, HEAD_DIM, factor=FACTOR, original_context_length=64, amplitude=2.0).amplitude == 2.0
    )


def test_yarn_over_no_range_is_a_step():
    rope = yarn_rope(
        THETA,
        HEAD_DIM,
        factor=FACTOR,
        original_context_length=LENGTH,
        beta_fast=1.0,
        beta_slow=1.0,
        rounds_range=False,
    )
    kept = [scaled / plain for scaled, plain in zip(rope.frequencies, PLAIN.frequencies, strict=True)]
    assert all(share == 1.0 or share == pytest.approx(1 / FACTOR) for share in kept)


@given(
    name=st.sampled_from(sorted(TABLES)),
    query_at=st.integers(0, 900),
    key_at=st.integers(0, 900),
    shift=st.integers(0, 99),
)
def test_a_score_depends_on_the_distance_only(name, query_at, key_at, shift):
    query, key = torch.randn(2, 1, 1, HEAD_DIM, generator=torch.Generator().manual_seed(0))

    def score(query_at: int, key_at: int) -> float:
        rotated_query = rotate(query, *TABLES[name].at(torch.tensor([query_at])))
        return float((rotated_query * rotate(key, *TABLES[name].at(torch.tensor([key_at])))).sum())

    expected = score(query_at, key_at)
    assert score(query_at + shift, key_at + shift) == pytest.approx(expected, abs=2e-3)
    if query_at == key_at:
        unrotated = float((query * key).sum())
        assert expected == pytest.approx(ROPES[name].amplitude ** 2 * unrotated, abs=2e-3)


def test_a_position_has_the_same_bits_in_every_batch():
    table = TABLES["yarn"]
    alone, together = table.at(torch.tensor([777])), table.at(torch.arange(1000))
    assert torch.equal(alone.cos[0], together.cos[777])
    assert torch.equal(alone.sin[0], together.sin[777])
    angles = 777 * torch.tensor(YARN.frequencies, dtype=torch.float64)
    torch.testing.assert_close(alone.cos[0, 0].double(), angles.cos() * YARN.amplitude, atol=1e-4, rtol=0)
