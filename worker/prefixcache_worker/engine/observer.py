"""Who hears how long things take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from prefixcache_worker.engine.request import Usage

logger = logging.getLogger(__name__)


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    """By its client, or because its client went away."""
    FAILED = "failed"


class FirstToken(NamedTuple):
    """The first token of any choice of a request."""

    seconds: float
    """Since the request arrived."""
    prefill_seconds: float
    """Since it first ran."""


@dataclass(slots=True)
class NewTokens:
    """When the tokens of one step came, which is the same moment for all of them."""

    now: float
    """The engine clock's reading."""
    first: list[FirstToken] = field(default_factory=list)
    """Once for each request that has its first one."""
    gaps: list[float] = field(default_factory=list)
    """Seconds since the token before, for each choice that had one: `tokens - 1` times for each choice."""


class RequestEnd(NamedTuple):
    """A request that is over, whether or not it has run."""

    outcome: Outcome
    seconds: float
    """Since it arrived."""
    decode_seconds: float | None
    """Since its first token; None if it had none."""
    tenant: str
    usage: Usage
    tenant_tokens: int
    """Of prompts and answers that the tenant's requests have come to so far, as the ledger remembers."""


class StepTimes(NamedTuple):
    """One step that the model has run."""

    num_sequences: int
    num_tokens: int
    """Computed in it."""
    seconds: float
    """From its beginning to its end."""
    plan_seconds: float
    """Of choosing the sequences and planning what each reads."""
    model_seconds: float
    """Of the forward pass; on a GPU, of starting it."""


class Observer(Protocol):
    """Hears of every request and step, on the engine's thread, in seconds of the engine's clock.

    A request counts once, whatever its number of choices and however often it was preempted.
    """

    def started(self, seconds: float) -> None:
        """A request runs for the first time, so long after it arrived."""

    def got_tokens(self, tokens: NewTokens) -> None:
        """A step has given tokens. Some requests may have ended by them, and that has been told before."""

    def ended(self, end: RequestEnd) -> None:
        """A request is over."""

    def stepped(self, step: StepTimes) -> None:
        """A step is over; of one that failed nothing is told."""


class GuardedObserver:
    """Passes everything on to an observer, if there is one. Its errors harm nobody; the first is logged."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self._has_failed = False

    def started(self, seconds: float) -> None:
        self._tell(lambda observer: observer.started(seconds))

    def got_tokens(self, tokens: NewTokens) -> None:
        self._tell(lambda observer: observer.got_tokens(tokens))

    def ended(self, end: RequestEnd) -> None:
        self._tell(lambda observer: observer.ended(end))

    def stepped(self, step: StepTimes) -> None:
        self._tell(lambda observer: observer.stepped(step))

    def _tell(self, what: Callable[[Observer], None]) -> None:
        if self._observer is None:
            return
        try:
            what(self._observer)
        except Exception:
            if not self._has_failed:
                logger.exception("the observer of requests fails; what it counts is incomplete")
            self._has_failed = True
