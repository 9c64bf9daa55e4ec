"""A measurement over time."""

from __future__ import annotations

import pytest
from hypothesis import given
from support.measurements import answered, any_measurements, failed, measurement

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.report.timeline import timeline


def test_each_interval_has_what_happened_in_it() -> None:
    results = [
        answered(planned=i / 10, first_token_seconds=0.5, gaps=(1.0,), cached_tokens=50) for i in range(10)
    ] + [failed("429", planned=1.0 + i / 10, seconds=0.05) for i in range(10)]

    first, second = timeline(measurement(results, seconds=4.0))

    assert (first.start, first.end, second.end) == (0.0, 2.0, 4.0)
    assert (first.planned_per_second, second.planned_per_second) == (10.0, 0.0)
    assert (first.answered_per_second, second.answered_per_second) == (2.5, 2.5)  # the sixth ends at 2.0
    assert (first.failed_per_second, second.failed_per_second) == (5.0, 0.0)
    assert first.first_token is not None
    assert first.first_token.p50 == pytest.approx(0.5)
    assert (second.first_token, second.cached_share) == (None, None)
    assert first.cached_share == 0.5
    assert first.output_tokens_per_second == 7.5


def test_requests_in_flight_are_an_average_over_time() -> None:
    results = [answered(planned=0.0, first_token_seconds=1.0) for _ in range(10)]

    (only,) = timeline(measurement(results, seconds=2.0))

    assert only.in_flight == 5.0


def test_the_first_interval_starts_with_the_first_planned_moment() -> None:
    """Which need not be that of the load: gaps of a Poisson process come first."""
    results = [answered(planned=8.0 + i / 5, first_token_seconds=0.1) for i in range(20)]

    first, second = timeline(measurement(results, seconds=4.0))

    assert (first.start, second.end) == (0.0, 4.0)
    assert (first.planned_per_second, second.planned_per_second) == (5.0, 5.0)


@given(any_measurements())
def test_nothing_is_lost_or_counted_twice(whole: Measurement) -> None:
    intervals = timeline(whole)
    if not intervals:
        assert not whole.results or whole.seconds == 0
        return

    def total(field: str) -> float:
        return sum(getattr(each, field) * (each.end - each.start) for each in intervals)

    answers = [result for result in whole.results if result.error is None]
    assert total("planned_per_second") == pytest.approx(len(whole.results))
    assert total("answered_per_second") + total("failed_per_second") == pytest.approx(len(whole.results))
    assert total("output_tokens_per_second") == pytest.approx(sum(result.output_tokens for result in answers))
    assert total("in_flight") == pytest.approx(
        sum(result.ended - result.sent for result in whole.results), abs=1e-6
    )
