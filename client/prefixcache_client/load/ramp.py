"""Arrivals whose rate grows until the server no longer keeps up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from prefixcache_client.load.arrivals import Due, Pause, Tally
from prefixcache_client.load.measurement import RequestResult
from prefixcache_client.load.session import Session

MAX_STEPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RampStep:
    """What came of one rate, in the latter half of its time."""

    rate: float
    """Sessions a second."""
    num_offered: int
    """Requests that were planned in that half."""
    num_kept: int
    """Requests that were answered in that half, as they had to be."""

    def is_at_least(self, share: float) -> bool:
        """Whether this share was kept, but for one: so many more or less fall into the half by chance."""
        return self.num_kept + 1 >= share * self.num_offered


@dataclass(frozen=True, slots=True, kw_only=True)
class RampOutcome:
    """What came of each rate, and where the server no longer kept up."""

    steps: tuple[RampStep, ...]
    """Of the rates that were sent, in their order."""
    knee: float | None
    """The rate before the first that the server did not keep up with; None: that was the first."""

    @property
    def has_reached_knee(self) -> bool:
        """Whether the server kept up with less than was sent."""
        return bool(self.steps) and self.knee != self.steps[-1].rate


def was_answered(result: RequestResult) -> bool:
    """Whether the request has an answer."""
    return result.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """The rate grows from `first_rate` by `rate_step` every `step_seconds`, up to `last_rate`.

    It ends early after a step that the server did not keep up with: in the latter half of its time, fewer
    requests than `least_share` of those planned were answered in time. The former half is left out because
    its answers are still those of the step before; so a step has to last twice as long as an answer takes.
    """

    first_rate: float
    """Sessions a second."""
    last_rate: float
    rate_step: float
    step_seconds: float = 10.0
    least_share: float = 0.9
    keeps: Callable[[RequestResult], bool] = field(default=was_answered, compare=False)
    """Whether a request was answered as it has to be: what makes goodput."""

    def __post_init__(self) -> None:
        if not (0 < self.first_rate <= self.last_rate and math.isfinite(self.last_rate)):
            raise ValueError(
                f"a ramp goes from a rate above 0 upwards, got {self.first_rate:g} to {self.last_rate:g}"
            )
        if not self.rate_step > 0:
            raise ValueError(f"the rate of a ramp must grow by more than 0, got {self.rate_step:g}")
        if self._num_steps >= MAX_STEPS + 1:
            raise ValueError(f"a ramp has at most {MAX_STEPS:,} steps, not {self._num_steps:,.0f}")
        if not self.step_seconds > 0:
            raise ValueError(f"a step must last more than 0 seconds, got {self.step_seconds:g}")

    @property
    def description(self) -> dict[str, str | int | float]:
        return {
            "kind": "ramp",
            "first_rate": self.first_rate,
            "last_rate": self.last_rate,
            "rate_step": self.rate_step,
            "step_seconds": self.step_seconds,
            "least_share": self.least_share,
        }

    def due(self, sessions: Iterator[Session], tally: Tally) -> Iterator[Due | Pause]:
        for number, rate in enumerate(self._rates()):
            start = number * self.step_seconds
            for i in range(max(1, round(rate * self.step_seconds))):
                session = next(sessions, None)
                if session is None:
                    return
                yield Due(start + i / rate, session)
            while tally.now < start + self.step_seconds:
                yield Pause(start + self.step_seconds)
            step = self._step(number, rate, tally.results, tally.planned_in_flight.values())
            if not step.is_at_least(self.least_share):
                return

    def outcome(self, results: Sequence[RequestResult]) -> RampOutcome:
        """What came of it. O(results x steps)."""
        last = max((result.planned for result in results), default=-1.0)
        steps = tuple(
            self._step(number, rate, results, ())
            for number, rate in takewhile(
                lambda step: step[0] * self.step_seconds <= last, enumerate(self._rates())
            )
        )
        kept = takewhile(lambda step: step.is_at_least(self.least_share), steps)
        return RampOutcome(steps=steps, knee=max((step.rate for step in kept), default=None))

    def _rates(self) -> Iterator[float]:
        return (self.first_rate + number * self.rate_step for number in range(math.floor(self._num_steps)))

    @property
    def _num_steps(self) -> float:
        """The integer part is their number."""
        return (self.last_rate - self.first_rate) / self.rate_step + 1 + 1e-9

    def _step(
        self, number: int, rate: float, results: Iterable[RequestResult], in_flight: Iterable[float]
    ) -> RampStep:
        end = (number + 1) * self.step_seconds
        middle = end - self.step_seconds / 2
        results = list(results)
        planned = [*(result.planned for result in results), *in_flight]
        return RampStep(
            rate=rate,
            num_offered=sum(middle <= moment < end for moment in planned),
            num_kept=sum(middle <= result.ended < end and self.keeps(result) for result in results),
        )
