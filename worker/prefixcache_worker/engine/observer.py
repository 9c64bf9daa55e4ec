"""Who hears how long things take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Protocol

logger = logging.getLogger(__name__)


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    """By its client, or because its client went away."""
    FAILED = "failed"


class Observer(Protocol):
    """Hears of every request, on the engine's thread, in seconds of the engine's clock.

    A request counts once, whatever its number of choices and however often it was preempted.
    """

    def started(self, seconds: float) -> None:
        """It runs for the first time, so long after it arrived."""

    def first_token(self, seconds: float) -> None:
        """The first token of any of its choices is there, so long after it arrived."""

    def next_token(self, seconds: float) -> None:
        """A choice has another token, so long after the one before: `tokens - 1` times for each choice."""

    def ended(self, outcome: Outcome, seconds: float) -> None:
        """It is over, so long after it arrived, whether or not it has run."""


class GuardedObserver:
    """Passes everything on to an observer, if there is one. Its errors harm nobody; the first is logged."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self._has_failed = False

    def started(self, seconds: float) -> None:
        self._tell(lambda observer: observer.started(seconds))

    def first_token(self, seconds: float) -> None:
        self._tell(lambda observer: observer.first_token(seconds))

    def next_token(self, seconds: float) -> None:
        self._tell(lambda observer: observer.next_token(seconds))

    def ended(self, outcome: Outcome, seconds: float) -> None:
        self._tell(lambda observer: observer.ended(outcome, seconds))

    def _tell(self, what: Callable[[Observer], None]) -> None:
        if self._observer is None:
            return
        try:
            what(self._observer)
        except Exception:
            if not self._has_failed:
                logger.exception("the observer of requests fails; what it counts is incomplete")
            self._has_failed = True
