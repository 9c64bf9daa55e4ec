"""What of a load is due next: a session that begins, or a further turn of one that has begun."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from prefixcache_client.load.arrivals import Arrivals, Due, Pause, Tally
from prefixcache_client.load.live_session import LiveSession
from prefixcache_client.load.session import Session

_NUM_MADE_AHEAD = 64
"""Sessions: of long prompts each may take a megabyte."""


class _TurnDue(NamedTuple):
    planned: float
    number: int
    """Orders those of equal moments."""
    live: LiveSession


class _MadeAhead(Iterator[Session]):
    """The sessions of a workload, some of which are made before they are asked for. Bounded memory."""

    def __init__(self, sessions: Iterator[Session]) -> None:
        self._sessions = sessions
        self._made: deque[Session] = deque()
        self._is_exhausted = False

    def make_one(self) -> bool:
        """Make a session, unless enough are made or there are no more; whether one was."""
        if self._is_exhausted or len(self._made) >= _NUM_MADE_AHEAD:
            return False
        session = next(self._sessions, None)
        if session is None:
            self._is_exhausted = True
            return False
        self._made.append(session)
        return True

    def __next__(self) -> Session:
        if not self._made and not self.make_one():
            raise StopIteration
        return self._made.popleft()


class Schedule:
    """Turns in the order of their planned moments, all before `end_seconds`."""

    def __init__(
        self, arrivals: Arrivals, sessions: Iterator[Session], tally: Tally, *, end_seconds: float
    ) -> None:
        self._made_ahead = _MadeAhead(sessions)
        self._arriving = arrivals.due(self._made_ahead, tally)
        self._has_more_sessions = True
        self._upcoming: Due | Pause | None = None
        self._turns: list[_TurnDue] = []
        self._end_seconds = end_seconds
        self._num_sessions = 0
        self._num_turns = 0

    def next_moment(self) -> float:
        """When the next turn is due, or there may be one. Infinite: not before a turn has ended, if ever."""
        if self._has_more_sessions and not isinstance(self._upcoming, Due):
            self._upcoming = next(self._arriving, None)
            if self._upcoming is None or self._end_seconds <= self._upcoming.seconds < math.inf:
                self._upcoming, self._has_more_sessions = None, False
        return min(
            math.inf if self._upcoming is None else self._upcoming.seconds,
            self._turns[0].planned if self._turns else math.inf,
        )

    def pop(self) -> LiveSession:
        """Whose turn it is. Requires: the moment of `next_moment` has come, and the tally says so."""
        upcoming = self._upcoming
        if self._turns and (upcoming is None or self._turns[0].planned <= upcoming.seconds):
            return heapq.heappop(self._turns).live
        assert isinstance(upcoming, Due), "a pause that is over is no pause"
        self._upcoming = None
        self._num_sessions += 1
        return LiveSession(upcoming.session, self._num_sessions - 1)

    def push(self, planned: float, live: LiveSession) -> bool:
        """Plan a further turn; False: it would be after the end."""
        if planned >= self._end_seconds:
            return False
        heapq.heappush(self._turns, _TurnDue(planned, self._num_turns, live))
        self._num_turns += 1
        return True

    def work_ahead(self) -> bool:
        """Make a session that will be wanted, if it makes sense; whether it did. May take a while."""
        return self._has_more_sessions and self._made_ahead.make_one()
