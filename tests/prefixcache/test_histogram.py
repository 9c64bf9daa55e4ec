"""Counts of values between bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import Histogram

BOUNDS = (1, 2.5, 10)


def test_a_value_counts_up_to_the_bound_that_it_reaches() -> None:
    histogram = Histogram(BOUNDS)
    for value in (0, 1, 1.1, 2.5, 9, 11):
        histogram.observe(value)
    histogram.observe(3, times=5)
    counts = histogram.counts()
    assert counts.counts == (2, 2, 6, 1)
    assert counts.cumulative() == [(1, 2), (2.5, 4), (10, 10)]
    assert counts.total == 11
    assert counts.sum == pytest.approx(39.6)


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 5))))
def test_b80_no_count_and_no_sum_ever_falls(values: list[tuple[float, int]]) -> None:
    histogram = Histogram(BOUNDS)
    before = histogram.counts()
    for value, times in values:
        histogram.observe(value, times)
        after = histogram.counts()
        assert after.total == before.total + times
        assert after.sum >= before.sum
        assert all(new >= old for new, old in zip(after.counts, before.counts, strict=True))
        before = after
