"""When the sessions of a load begin."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from prefixcache_client.load.measurement import RequestResult
from prefixcache_client.load.session import Session

MAX_RATE = 100_000
"""Sessions a second. Nothing sends so fast, and whatever is due is kept in memory until the end."""


class Due(NamedTuple):
    """A session, and when its first turn is to be sent."""

    seconds: float
    """Since the load began."""
    session: Session


class Pause(NamedTuple):
    """Nothing to send now: ask again at this moment, or when a session has ended, if that is earlier."""

    seconds: float


@dataclass(slots=True)
class Tally:
    """What has come of a load so far. The runner's own: arrivals only read it."""

    now: float = 0.0
    """Seconds since the load began."""
    num_live_sessions: int = 0
    """Sessions that have begun and not ended."""
    results: list[RequestResult] = field(default_factory=list)
    """Of the requests that have ended, in the order of their ends."""
    planned_in_flight: dict[int, float] = field(default_factory=dict)
    """When those that have not ended were planned, by any key."""


class Arrivals(Protocol):
    """When each session begins. The same settings give the same moments, in any process."""

    @property
    def description(self) -> dict[str, str | int | float]:
        """What makes the moments, setting by setting."""
        ...

    def due(self, sessions: Iterator[Session], tally: Tally) -> Iterator[Due | Pause]:
        """Each session with its moment, moments ascending. Ends when there are no more sessions, or sooner.

        Takes a session from `sessions` only when it is asked for one.
        `tally` is for those that go by what has come of the load.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRate:
    """Sessions begin at equal distances, whatever becomes of them."""

    rate: float
    """Sessions a second."""

    def __post_init__(self) -> None:
        _require_rate("rate", self.rate)

    @property
    def description(self) -> dict[str, str | int | float]:
        return {"kind": "constant", "rate": self.rate}

    def due(self, sessions: Iterator[Session], tally: Tally) -> Iterator[Due]:
        # A product of its number, not a sum of gaps: the rate does not drift, however long the load.
        for number, session in enumerate(sessions):
            yield Due(number / self.rate, session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Sessions begin independently of each other: gaps are exponential, 1 / `rate` on average."""

    rate: float
    """Sessions a second."""
    seed: int = 0

    def __post_init__(self) -> None:
        _require_rate("rate", self.rate)

    @property
    def description(self) -> dict[str, str | int | float]:
        return {"kind": "poisson", "rate": self.rate, "seed": self.seed}

    def due(self, sessions: Iterator[Session], tally: Tally) -> Iterator[Due]:
        rng = random.Random(f"arrivals-{self.seed}")
        seconds = 0.0
        for session in sessions:
            seconds += rng.expovariate(self.rate)
            yield Due(seconds, session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """`burst` sessions begin at once, then none until the next burst; `rate` a second in the long run."""

    rate: float
    """Sessions a second."""
    burst: int
    """Sessions that begin together."""

    def __post_init__(self) -> None:
        _require_rate("rate", self.rate)
        if self.burst < 1:
            raise ValueError(f"burst must be at least 1 session, got {self.burst}")

    @property
    def description(self) -> dict[str, str | int | float]:
        return {"kind": "bursts", "rate": self.rate, "burst": self.burst}

    def due(self, sessions: Iterator[Session], tally: Tally) -> Iterator[Due]:
        for number, session in enumerate(sessions):
            yield Due(number // self.burst * self.burst / self.rate, session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Sessions begin when the workload says, as in what it repeats."""

    @property
    def description(self) -> dict[str, str | int | float]:
        return {"kind": "planned"}

    def due(self, sessions: Iterator[Session], tally: Tally) -> Iterator[Due]:
        """Raises ValueError for a session that has no moment."""
        for number, session in enumerate(sessions):
            if session.seconds is None:
                raise ValueError(f"session {number} of the workload has no time of its own: give a rate")
            yield Due(session.seconds, session)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`concurrency` sessions are live at any time: the next begins when one ends.

    A server that slows down is asked less: latencies at a rate need one of the others.
    """

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1 session, got {self.concurrency}")

    @property
    def description(self) -> dict[str, str | int | float]:
        return {"kind": "closed", "concurrency": self.concurrency}

    def due(self, sessions: Iterator[Session], tally: Tally) -> Iterator[Due | Pause]:
        while True:
            if tally.num_live_sessions >= self.concurrency:
                yield Pause(math.inf)
            elif (session := next(sessions, None)) is None:
                return
            else:
                yield Due(tally.now, session)


def _require_rate(name: str, rate: float) -> None:
    if not 0 < rate <= MAX_RATE:
        raise ValueError(f"{name} must be above 0 and at most {MAX_RATE:,} sessions a second, got {rate:g}")
