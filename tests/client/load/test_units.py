"""Figures as people read them."""

from __future__ import annotations

import pytest

from prefixcache_client.load.report.units import number, seconds, share, short_number, short_seconds


@pytest.mark.parametrize(
    ("duration", "text", "short"),
    [
        (0.0, "0 s", "0 s"),
        (0.0000042, "4.20 µs", "4.2 µs"),
        (0.0009996, "1.00 ms", "1 ms"),
        (0.05, "50.0 ms", "50 ms"),
        (0.0834, "83.4 ms", "83.4 ms"),
        (0.9994, "999 ms", "999 ms"),
        (0.9996, "1.00 s", "1 s"),
        (1.236, "1.24 s", "1.24 s"),
        (9.999, "10.0 s", "10 s"),
        (1234.5, "1,230 s", "1,230 s"),
        (-0.02, "-20.0 ms", "-20 ms"),
    ],
)
def test_durations_have_three_digits(duration: float, text: str, short: str) -> None:
    assert (seconds(duration), short_seconds(duration)) == (text, short)


@pytest.mark.parametrize(
    ("value", "text", "short"),
    [
        (0.01234, "0.0123", "0.0123"),
        (2.5, "2.50", "2.5"),
        (100.0, "100", "100"),
        (12345.0, "12,300", "12,300"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str, short: str) -> None:
    assert (number(value), short_number(value)) == (text, short)


def test_counts_have_all_digits() -> None:
    assert number(1_234_567) == "1,234,567"


def test_what_cannot_be_told_is_a_dash() -> None:
    assert (seconds(None), number(None), share(None), share(0.5)) == ("-", "-", "-", "50.0 %")
