"""What the requests of the largest tenants have come to, and those of all others together."""

from __future__ import annotations

from dataclasses import replace

from prefixcache_worker.engine.observer import Outcome, RequestEnd
from prefixcache_worker.engine.usage_ledger import Totals

OTHER = "other"
"""The name of all tenants that have none of their own here; one that is really called so is among them."""
LEAD = 2
"""A tenant takes another one's place when it has so many times the tokens: so places change rarely."""


class TenantTotals:
    """Sums of requests by tenant, for the `num_named` tenants with the most tokens, more or less.

    Sums begin when a tenant gets its place. What it did before is in those of OTHER, which never fall; those
    of a tenant that loses its place go, and begin anew if it comes back. So every sum rises, or is gone.
    """

    def __init__(self, num_named: int) -> None:
        self._num_named = num_named
        self._totals: dict[str, Totals] = {}
        self._tokens: dict[str, int] = {}
        """Of the named ones, since before they had their places."""
        self._other = Totals()

    def add(self, end: RequestEnd) -> None:
        """A request has ended. O(1) for a tenant that is named, O(num_named) for one that is not."""
        totals = self._other
        if self._is_named(end.tenant, end.tenant_tokens):
            self._tokens[end.tenant] = end.tenant_tokens
            totals = self._totals.setdefault(end.tenant, Totals())
        totals.finished_requests += end.outcome is Outcome.FINISHED
        totals.unfinished_requests += end.outcome is not Outcome.FINISHED
        totals.add(end.usage)

    def by_tenant(self) -> dict[str, Totals]:
        """A copy, OTHER last. O(num_named)."""
        totals = {tenant: replace(totals) for tenant, totals in self._totals.items()}
        return totals | {OTHER: replace(self._other)}

    def _is_named(self, tenant: str, num_tokens: int) -> bool:
        """Whether it has a place, which it may just have got."""
        if tenant == OTHER or not self._num_named:
            return False
        if tenant in self._totals or len(self._totals) < self._num_named:
            return True
        smallest = min(self._tokens, key=self._tokens.__getitem__)
        if num_tokens <= LEAD * self._tokens[smallest]:
            return False
        del self._totals[smallest], self._tokens[smallest]
        return True
