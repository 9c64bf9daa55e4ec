"""How much has been computed for each tenant, so that the one served least goes first."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

MAX_REMEMBERED_TENANTS = 1024
"""Counters kept, besides those of tenants that wait; a tenant without one counts as at the level."""


class TenantService:
    """Virtual token counters: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).

    A tenant's counter grows by one for each token that is computed for it, of prompts and answers
    alike; what comes from the cache is free. All tenants have equal shares. One that starts to wait is
    lifted to the lowest counter among those that wait already, so that nobody saves up by being idle.
    """

    def __init__(self) -> None:
        self._num_tokens: dict[str, int] = {}
        self._num_waiting: Counter[str] = Counter()
        self._level = 0
        """The lowest counter among the waiting tenants, or that of the last one that waited."""

    def __getitem__(self, tenant: str) -> int:
        """The tenant's counter; only differences between tenants mean anything. O(1)."""
        return self._num_tokens.get(tenant, self._level)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """So many tokens are computed for it; a negative number takes them back. Amortized O(log tenants)."""
        self._set(tenant, self[tenant] + num_tokens)

    def starts_waiting(self, tenant: str) -> None:
        """One more of its sequences waits.

        O(waiting tenants) for the first one, and amortized O(log tenants); else O(1).
        """
        is_first = tenant not in self._num_waiting
        if is_first:
            self._level = min((self[other] for other in self._num_waiting), default=self._level)
        self._num_waiting[tenant] += 1
        if is_first:
            self._set(tenant, max(self[tenant], self._level))

    def stops_waiting(self, tenant: str) -> None:
        """One of its sequences waits no more. O(1)."""
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
            if not self._num_waiting:
                self._level = self[tenant]

    def _set(self, tenant: str, num_tokens: int) -> None:
        self._num_tokens[tenant] = num_tokens
        if len(self._num_tokens) > MAX_REMEMBERED_TENANTS + len(self._num_waiting):
            self._forget_lowest()

    def _forget_lowest(self) -> None:
        """Drop at least half of the counters of those that don't wait: the lowest, which say least."""
        waiting = {tenant: self._num_tokens[tenant] for tenant in self._num_waiting}
        idle = [(n, tenant) for tenant, n in self._num_tokens.items() if tenant not in waiting]
        highest = nlargest(MAX_REMEMBERED_TENANTS // 2, idle)
        self._num_tokens = waiting | {tenant: n for n, tenant in highest if n > self._level}
