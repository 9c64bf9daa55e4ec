"""Step 1: the slope is found in noise, and accused of only when it is certain."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_client.doctor.finding import Verdict
from prefixcache_client.doctor.slope import (
    LEAST_PAIRS,
    SlopeFigures,
    StepPair,
    StepTimes,
    check_slope,
    slope_of,
)

ROWS = 1000


def times(*slopes: float, first: float = 0.010) -> StepTimes:
    """A measurement in which each pair grows by so many seconds a row."""
    return StepTimes([StepPair(first, first + slope * ROWS) for slope in slopes], ROWS)


def noisy(slope: float, seed: int, *, sigma: float = 0.0005, drift: float = 0.0) -> StepTimes:
    """40 pairs of steps of 10 ms, a tenth of them ten times as long; each pair slower than the one before it
    by `drift` of 10 ms."""
    rng = random.Random(seed)

    def step(rows: int, number: int) -> float:
        seconds = 0.010 * (1 + drift * number) + slope * rows + rng.gauss(0, sigma)
        return seconds * (10 if rng.random() < 0.1 else 1)

    return StepTimes([StepPair(step(0, i), step(ROWS, i)) for i in range(40)], ROWS)


HEALTHY = SlopeFigures(
    measurements=(times(*[1.1e-6] * 20),),
    token_bytes=10_000,
    block_size=16,
    read_bytes_per_second=2e10,
    attention_seconds_per_row=1e-6,
)
STEEP = times(*[4e-6] * 20)
WIDE = times(*[-1e-6] * 8, *[4e-6] * 4, *[9e-6] * 8)
"""As much below what is explained as above it."""


@given(slope=st.floats(-1e-3, 1e-3), first=st.floats(0, 1), count=st.integers(LEAST_PAIRS, 60))
def test_a_straight_line_has_its_slope(slope: float, first: float, count: int) -> None:
    measured = slope_of(times(*[slope] * count, first=first))

    assert measured.value == pytest.approx(slope, abs=1e-12)
    assert measured.low == pytest.approx(measured.high, abs=1e-12)


@given(seed=st.integers(0, 1000), drift=st.sampled_from([-0.02, 0.0, 0.1]))
def test_noise_wild_steps_and_a_machine_that_gets_slower_do_not_move_it(seed: int, drift: float) -> None:
    measured = slope_of(noisy(3e-6, seed, drift=drift))

    assert measured.low <= measured.value <= measured.high
    assert measured.value == pytest.approx(3e-6, rel=0.35)


@given(seed=st.integers(0, 1000))
def test_a_range_holds_the_truth_nearly_always(seed: int) -> None:
    held = 0
    for i in range(40):
        measured = slope_of(noisy(2e-6, 40 * seed + i, sigma=0.002))
        held += measured.low <= 2e-6 <= measured.high

    assert held >= 32  # of 40 with 95 % each, fewer come about once in 10,000 runs


def test_what_attention_explains_is_healthy() -> None:
    finding = check_slope(HEALTHY)

    assert finding.verdict is Verdict.HEALTHY
    assert finding.evidence["seconds_per_row_by_bandwidth"] == 5e-7
    assert finding.evidence["times_explained"] == pytest.approx(1.1)
    assert finding.evidence["few_rows_step_seconds"] == 0.010
    assert finding.evidence["many_rows_step_seconds"] == pytest.approx(0.0111)


def test_the_slower_of_bandwidth_and_attention_explains() -> None:
    finding = check_slope(replace(HEALTHY, attention_seconds_per_row=1e-9))

    assert finding.evidence["times_explained"] == pytest.approx(2.2)


def test_more_than_explained_in_every_measurement_is_a_fault() -> None:
    finding = check_slope(replace(HEALTHY, measurements=(STEEP,) * 3))

    assert (finding.verdict, finding.pitfall) == (Verdict.FAULT, "growing-copy")
    assert "4.00 us a row" in finding.sentence
    assert "4.0 times" in finding.sentence


def test_tiny_blocks_are_cause_enough_for_a_slope() -> None:
    finding = check_slope(replace(HEALTHY, measurements=(STEEP,), block_size=1))

    assert (finding.verdict, finding.pitfall) == (Verdict.FAULT, "tiny-blocks")


@pytest.mark.parametrize("measurements", [(WIDE,), (STEEP, WIDE, STEEP)])
def test_what_may_be_noise_is_neither_accused_nor_acquitted(measurements: tuple[StepTimes, ...]) -> None:
    finding = check_slope(replace(HEALTHY, measurements=measurements))

    assert (finding.verdict, finding.pitfall) == (Verdict.UNKNOWN, None)


def test_one_measurement_that_is_certain_acquits() -> None:
    finding = check_slope(replace(HEALTHY, measurements=(WIDE, *HEALTHY.measurements)))

    assert finding.verdict is Verdict.HEALTHY


def test_a_growth_that_does_not_matter_is_healthy() -> None:
    """Many times what attention explains, and next to nothing of a step."""
    finding = check_slope(
        replace(
            HEALTHY,
            measurements=(times(*[3e-7] * 20),) * 3,
            attention_seconds_per_row=1e-8,
            read_bytes_per_second=1e12,
        )
    )

    assert finding.verdict is Verdict.HEALTHY
    assert finding.evidence["times_explained"] == pytest.approx(30)


def test_without_a_measurement_nothing_is_decided() -> None:
    assert check_slope(replace(HEALTHY, measurements=())).verdict is Verdict.UNKNOWN
