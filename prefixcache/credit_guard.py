"""Decides whether conversations that go on get credit, by what shadow caches hit with it and without."""

from __future__ import annotations

from collections import deque
from math import sqrt

from prefixcache.policy_state import PolicySwitch

_SIGMAS_TO_LEAVE_LRU = 3
_SIGMAS_TO_RETURN = 2
_NUM_SWITCHES_KEPT = 16


class CreditGuard:
    """Watches two shadow caches over the same requests, and follows the one that is ahead.

    Each request gives a difference of hits between the other one and the one in force. The sum of
    them, which starts anew whenever it is not above 0, is the lead. If both were equally good, its
    standard deviation would be the root of the summed squares. The other is taken to be better
    when the lead is more than 3 of these, or 2 for the way back to lru, and more than `least_lead`.
    """

    __slots__ = (
        "_credit_ticks",
        "_lead",
        "_lead_since",
        "_least_lead",
        "_squares",
        "credit_ticks",
        "switches",
    )

    def __init__(self, credit_ticks: int, *, least_lead: float) -> None:
        """Starts with lru; `credit_ticks` is the credit to try."""
        self._credit_ticks = credit_ticks
        self.credit_ticks = 0
        """What is in force."""
        self.switches: deque[PolicySwitch] = deque(maxlen=_NUM_SWITCHES_KEPT)
        """The latest ones, the last one last."""
        self._least_lead = least_lead
        self._start_anew(0)

    def observe(self, tick: int, num_more_hits: int) -> bool:
        """By how much credit was ahead of lru in one request. True when the one in force changes. O(1)."""
        num_more_hits = -num_more_hits if self.credit_ticks else num_more_hits
        self._lead += num_more_hits
        self._squares += num_more_hits * num_more_hits
        if self._lead <= 0:
            self._start_anew(tick)
            return False
        num_sigmas = _SIGMAS_TO_RETURN if self.credit_ticks else _SIGMAS_TO_LEAVE_LRU
        sigma = sqrt(self._squares)
        if self._lead <= max(num_sigmas * sigma, self._least_lead):
            return False
        better, worse = ("lru", "credit") if self.credit_ticks else ("credit", "lru")
        reason = (
            f"{better} had {self._lead:,} hits more than {worse} on the sample since request "
            f"{self._lead_since:,}, which is {self._lead / sigma:.1f} standard deviations"
        )
        self.credit_ticks = 0 if self.credit_ticks else self._credit_ticks
        self.switches.append(PolicySwitch(tick, self.credit_ticks, reason))
        self._start_anew(tick)
        return True

    def _start_anew(self, tick: int) -> None:
        self._lead = 0
        self._squares = 0
        self._lead_since = tick
