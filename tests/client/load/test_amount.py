"""Amounts: what they say, what they draw."""

from __future__ import annotations

import math
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_client.load.workloads import Amount

NUMBERS = st.floats(min_value=1, max_value=1e6)
AMOUNTS = st.one_of(
    NUMBERS.map(Amount.fixed),
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: Amount.uniform(min(pair), max(pair))),
    st.tuples(NUMBERS, st.floats(min_value=0.01, max_value=2)).map(lambda pair: Amount.lognormal(*pair)),
)


@given(AMOUNTS, st.integers())
def test_every_draw_is_within_the_bounds(amount: Amount, seed: int) -> None:
    drawn = [amount.draw(Random(seed)) for _ in range(5)]
    assert all(amount.least <= value <= amount.most for value in drawn)
    assert 1 <= amount.draw_count(Random(seed)) <= amount.most_count


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("64", Amount(64, 64)),
        ("0.5", Amount(0.5, 0.5)),
        ("32..128", Amount(32, 128)),
        ("64~0.5", Amount(64 * math.exp(-1.5), 64 * math.exp(1.5), 0.5)),
    ],
)
def test_what_is_read_is_what_is_shown(text: str, amount: Amount) -> None:
    assert Amount.parse(text) == amount
    assert str(amount) == text


@pytest.mark.parametrize(
    "text", ["", "many", "5..3", "-1", "1..2..3", "nan", "inf", "64~", "64~-1", "2~9999"]
)
def test_what_is_no_amount_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a number such as 64, a range") as error:
        Amount.parse(text)
    assert repr(text) in str(error.value)


def test_a_lognormal_amount_has_its_median_and_its_spread() -> None:
    rng = Random(7)
    drawn = [Amount.lognormal(100, 0.5).draw(rng) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(100, rel=0.05)
    assert statistics.stdev(map(math.log, drawn)) == pytest.approx(0.5, rel=0.05)


def test_a_count_is_at_least_one() -> None:
    assert Amount.fixed(0).draw_count(Random(0)) == Amount.fixed(0).most_count == 1
