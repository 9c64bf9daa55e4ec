"""A measurement over time: what went on in each of many short intervals of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from prefixcache_client.load.measurement import Measurement, RequestResult
from prefixcache_client.load.report.distribution import Distribution, distribution

_MOST_INTERVALS = 60
_REQUESTS_PER_INTERVAL = 10
"""Roughly, where there are not so many that the intervals would be too many: fewer would show only noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """From `start` to `end`, in seconds since the first planned moment."""

    start: float
    end: float
    planned_per_second: float
    answered_per_second: float
    """Requests whose answer was complete then."""
    failed_per_second: float
    output_tokens_per_second: float
    """As the messages with them came; the tokens of an answer are spread evenly over its messages."""
    in_flight: float
    """Requests sent and not ended, on average."""
    first_token: Distribution | None
    """Of the answered requests planned for then; None: there are none."""
    cached_share: float | None
    """Of the prompt tokens of the answered requests planned for then; None: nobody tells."""


def timeline(measurement: Measurement) -> tuple[Interval, ...]:
    """Intervals of one length from the first planned moment to the last end; none when it took no time.

    O(tokens + requests * intervals that one is in flight).
    """
    results, seconds = measurement.results, measurement.seconds
    if not results or seconds <= 0:
        return ()
    num_intervals = min(max(len(results) // _REQUESTS_PER_INTERVAL, 1), _MOST_INTERVALS)
    begin = min(result.planned for result in results)
    counts = _Counts(num_intervals, seconds / num_intervals, begin)
    for result in results:
        counts.add(result)
    return tuple(counts.interval(i) for i in range(num_intervals))


class _Counts:
    """Sums for each interval. The first one starts at `begin`."""

    def __init__(self, num_intervals: int, length: float, begin: float) -> None:
        self._length = length
        self._begin = begin
        self._last = num_intervals - 1
        self._planned: list[list[RequestResult]] = [[] for _ in range(num_intervals)]
        self._answered = [0] * num_intervals
        self._failed = [0] * num_intervals
        self._tokens = [0.0] * num_intervals
        self._seconds_in_flight = [0.0] * num_intervals

    def add(self, result: RequestResult) -> None:
        self._planned[self._index(result.planned)].append(result)
        ends = self._answered if result.error is None else self._failed
        ends[self._index(result.ended)] += 1
        moments = _message_moments(result)
        for moment in moments:
            self._tokens[self._index(moment)] += result.output_tokens / len(moments)
        for i in range(self._index(result.sent), self._index(result.ended) + 1):
            start = self._begin + i * self._length
            inside = min(result.ended, start + self._length) - max(result.sent, start)
            self._seconds_in_flight[i] += max(inside, 0.0)

    def interval(self, i: int) -> Interval:
        answered = [result for result in self._planned[i] if result.error is None]
        told = [result for result in answered if result.cached_tokens is not None]
        of_prompt = sum(result.prompt_tokens or 0 for result in told)
        return Interval(
            start=i * self._length,
            end=(i + 1) * self._length,
            planned_per_second=len(self._planned[i]) / self._length,
            answered_per_second=self._answered[i] / self._length,
            failed_per_second=self._failed[i] / self._length,
            output_tokens_per_second=self._tokens[i] / self._length,
            in_flight=self._seconds_in_flight[i] / self._length,
            first_token=distribution(_first_token_seconds(answered)),
            cached_share=sum(result.cached_tokens or 0 for result in told) / of_prompt if of_prompt else None,
        )

    def _index(self, moment: float) -> int:
        return min(max(int((moment - self._begin) / self._length), 0), self._last)


def _message_moments(result: RequestResult) -> list[float]:
    if result.first_token is None or result.error is not None:
        return []
    return list(accumulate(result.token_gaps, initial=result.first_token))


def _first_token_seconds(answered: Iterable[RequestResult]) -> Iterable[float]:
    return (result.first_token_seconds for result in answered if result.first_token_seconds is not None)
