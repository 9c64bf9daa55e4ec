"""Decides whether conversations that go on get credit, by what shadow caches hit with it and without."""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import NamedTuple

_SIGMAS_TO_LEAVE_LRU = 3
_SIGMAS_TO_RETURN = 2
_NUM_SWITCHES_KEPT = 16


class PolicySwitch(NamedTuple):
    """The policy has given another credit from then on."""

    tick: int
    """Number of the latest request at that time."""
    credit_ticks: int
    reason: str


class CreditGuard:
    """Watches two shadow caches over the same requests, and follows the one that is ahead.

    Each request gives a difference of hits between the other and the one in force. Their sum, which starts
    anew whenever it falls below 0, is the lead. The other is better when its lead is more than so many
    standard deviations of as many independent differences of these sizes: 3 to leave lru, 2 to return.
    """

    __slots__ = ("_credit_ticks", "_lead", "_lead_since", "_squares", "credit_ticks", "switches")

    def __init__(self, credit_ticks: int) -> None:
        """Starts with lru; `credit_ticks` is the credit to try."""
        self._credit_ticks = credit_ticks
        self.credit_ticks = 0
        """What is in force."""
        self.switches: deque[PolicySwitch] = deque(maxlen=_NUM_SWITCHES_KEPT)
        """The latest ones, the last one last."""
        self._start_anew(0)

    def observe(self, tick: int, num_lru_hits: int, num_credit_hits: int) -> bool:
        """What a request hit in each shadow cache. True when the credit has changed. O(1)."""
        difference = num_credit_hits - num_lru_hits
        if not difference:
            return False
        if self.credit_ticks:
            difference = -difference
        self._lead += difference
        self._squares += difference * difference
        if self._lead <= 0:
            self._start_anew(tick)
            return False
        num_sigmas = _SIGMAS_TO_RETURN if self.credit_ticks else _SIGMAS_TO_LEAVE_LRU
        if self._lead <= num_sigmas * sqrt(self._squares):
            return False
        better, worse = ("lru", "credit") if self.credit_ticks else ("credit", "lru")
        self.credit_ticks = 0 if self.credit_ticks else self._credit_ticks
        reason = (
            f"on a sample of the blocks asked for since request {self._lead_since:,}, {better} had "
            f"{self._lead:,} hits more than {worse}, over {num_sigmas} standard deviations"
        )
        self.switches.append(PolicySwitch(tick, self.credit_ticks, reason))
        self._start_anew(tick)
        return True

    def _start_anew(self, tick: int) -> None:
        self._lead = 0
        self._squares = 0
        self._lead_since = tick
