"""Step 1: the slope is found in noise, and accused of only when it is certain."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_client.doctor.finding import Verdict
from prefixcache_client.doctor.slope import LEAST_POINTS, Slope, SlopeFigures, check_slope, slope_of

ROWS = range(32, 1056)
HEALTHY = SlopeFigures(
    slopes=(Slope(1.1e-6, 0.9e-6, 1.3e-6),),
    first_step_seconds=0.010,
    last_step_seconds=0.011,
    num_rows=1056,
    token_bytes=10_000,
    block_size=16,
    read_bytes_per_second=2e10,
    attention_seconds_per_row=1e-6,
)


@given(slope=st.floats(-1e-3, 1e-3), start=st.floats(0, 1), count=st.integers(LEAST_POINTS, 300))
def test_a_straight_line_has_its_slope(slope: float, start: float, count: int) -> None:
    rows = range(count)

    measured = slope_of(rows, [start + slope * row for row in rows])

    assert measured.value == pytest.approx(slope, abs=1e-12)
    assert measured.low == pytest.approx(measured.high, abs=1e-12)


@given(seed=st.integers(0, 1000))
def test_noise_and_wild_steps_do_not_move_it_out_of_its_range(seed: int) -> None:
    """A step of 10 ms that grows by 3 us a row, with a tenth of the steps ten times as long."""
    rng = random.Random(seed)
    seconds = [
        (0.010 + 3e-6 * row + rng.gauss(0, 0.0005)) * (10 if rng.random() < 0.1 else 1) for row in ROWS
    ]

    measured = slope_of(ROWS, seconds)

    assert measured.low <= measured.value <= measured.high
    assert measured.value == pytest.approx(3e-6, rel=0.35)


@given(seed=st.integers(0, 1000))
def test_a_range_holds_the_truth_nearly_always(seed: int) -> None:
    rng = random.Random(seed)
    held = 0
    for _ in range(40):
        measured = slope_of(ROWS, [0.010 + 2e-6 * row + rng.gauss(0, 0.002) for row in ROWS])
        held += measured.low <= 2e-6 <= measured.high

    assert held >= 32  # of 40 with 95 % each, fewer come about once in 10,000 runs


def test_what_attention_explains_is_healthy() -> None:
    finding = check_slope(HEALTHY)

    assert finding.verdict is Verdict.HEALTHY
    assert finding.evidence["seconds_per_row_by_bandwidth"] == 5e-7
    assert finding.evidence["times_explained"] == pytest.approx(1.1)


def test_the_slower_of_bandwidth_and_attention_explains() -> None:
    finding = check_slope(replace(HEALTHY, attention_seconds_per_row=1e-9))

    assert finding.evidence["times_explained"] == pytest.approx(2.2)


def test_more_than_explained_in_every_answer_is_a_fault() -> None:
    steep = Slope(4e-6, 2e-6, 6e-6)

    finding = check_slope(replace(HEALTHY, slopes=(steep, steep, steep)))

    assert (finding.verdict, finding.pitfall) == (Verdict.FAULT, "growing-copy")
    assert "4.00 us a row" in finding.sentence
    assert "4.0 times" in finding.sentence


def test_tiny_blocks_are_cause_enough_for_a_slope() -> None:
    steep = Slope(4e-6, 2e-6, 6e-6)

    finding = check_slope(replace(HEALTHY, slopes=(steep,), block_size=1))

    assert (finding.verdict, finding.pitfall) == (Verdict.FAULT, "tiny-blocks")


@pytest.mark.parametrize(
    "slopes",
    [
        [Slope(4e-6, 1.2e-6, 6e-6)],  # its low end is explained
        [Slope(4e-6, 3e-6, 5e-6), Slope(4e-6, 1e-6, 5e-6), Slope(4e-6, 3e-6, 5e-6)],  # one answer's is
        [Slope(-2e-4, -3e-4, 1e-4)],  # the machine became faster meanwhile
    ],
)
def test_what_may_be_noise_is_neither_accused_nor_acquitted(slopes: list[Slope]) -> None:
    finding = check_slope(replace(HEALTHY, slopes=tuple(slopes)))

    assert (finding.verdict, finding.pitfall) == (Verdict.UNKNOWN, None)


def test_one_answer_that_is_certain_acquits() -> None:
    noisy = Slope(4e-6, -1e-6, 9e-6)

    assert check_slope(replace(HEALTHY, slopes=(noisy, *HEALTHY.slopes))).verdict is Verdict.HEALTHY


def test_a_growth_that_does_not_matter_is_healthy() -> None:
    """Many times what attention explains, and next to nothing of a step."""
    slope = Slope(3e-7, 2e-7, 4e-7)

    finding = check_slope(
        replace(HEALTHY, slopes=(slope,) * 3, attention_seconds_per_row=1e-8, read_bytes_per_second=1e12)
    )

    assert finding.verdict is Verdict.HEALTHY
    assert finding.evidence["times_explained"] == pytest.approx(30)


def test_without_an_answer_nothing_is_decided() -> None:
    assert check_slope(replace(HEALTHY, slopes=())).verdict is Verdict.UNKNOWN
