"""What the requests of each tenant have cost."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields

from prefixcache_worker.engine.request import Usage

MAX_REMEMBERED_TENANTS = 10_000
FORGOTTEN = ""
"""The name under which the sums of tenants go on that are not remembered one by one. No tenant has it."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over requests. `cached_tokens + computed_tokens == prompt_tokens`, always."""

    finished_requests: int = 0
    unfinished_requests: int = 0
    """Ended by the client, a deadline or an error."""
    live_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    written_tokens: int = 0
    block_seconds: float = 0.0

    def add(self, usage: Usage) -> None:
        """One more request has cost so much."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.computed_tokens += usage.computed_tokens
        self.completion_tokens += usage.completion_tokens
        self.written_tokens += usage.written_tokens
        self.block_seconds += usage.block_seconds

    def __iadd__(self, other: Totals) -> Totals:
        for field in fields(Totals):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


class UsageLedger:
    """The totals of all requests that have ended, by tenant.

    A request counts for what it cost, however it ended: nothing when it never ran. Remembers the
    MAX_REMEMBERED_TENANTS tenants whose requests ended last, about 400 bytes each; what the others' cost
    stays in the totals of FORGOTTEN. So the sum over all is what the worker has done.
    """

    def __init__(self, *, max_tenants: int = MAX_REMEMBERED_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._totals: OrderedDict[str, Totals] = OrderedDict()
        self._forgotten = Totals()

    def add(self, tenant: str, usage: Usage, *, is_finished: bool) -> int:
        """A request has ended. Returns how many tokens the tenant's have come to. O(1)."""
        totals = self._totals.setdefault(tenant, Totals())
        self._totals.move_to_end(tenant)
        totals.finished_requests += is_finished
        totals.unfinished_requests += not is_finished
        totals.add(usage)
        if len(self._totals) > self._max_tenants:
            self._forgotten += self._totals.popitem(last=False)[1]
        return totals.prompt_tokens + totals.completion_tokens

    def totals(self, tenant: str) -> Totals:
        """A copy of the tenant's totals. O(1)."""
        total = Totals()
        total += self._forgotten if tenant == FORGOTTEN else self._totals.get(tenant, Totals())
        return total

    def tenants(self) -> list[str]:
        """Those that have totals, FORGOTTEN among them if there is anything under it. O(tenants)."""
        return [*self._totals, *([FORGOTTEN] if self._forgotten != Totals() else [])]
