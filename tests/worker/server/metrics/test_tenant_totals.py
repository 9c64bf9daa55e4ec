"""Which tenants have sums of their own."""

from __future__ import annotations

from collections import Counter
from random import Random

from prefixcache_worker.engine.observer import Outcome, RequestEnd
from prefixcache_worker.engine.request import Usage
from prefixcache_worker.server.metrics.tenant_totals import OTHER, TenantTotals


class Ends:
    """Requests that end, and what the ledger would say of their tenants."""

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()

    def of(self, tenant: str, num_tokens: int, outcome: Outcome = Outcome.FINISHED) -> RequestEnd:
        self.tokens[tenant] += num_tokens
        usage = Usage(
            prompt_tokens=num_tokens, cached_tokens=0, computed_tokens=num_tokens, completion_tokens=0
        )
        return RequestEnd(outcome, 1.0, 1.0, tenant, usage, self.tokens[tenant])


def prompt_tokens(totals: TenantTotals) -> dict[str, int]:
    return {tenant: total.prompt_tokens for tenant, total in totals.by_tenant().items()}


def test_a_tenant_takes_a_place_when_it_has_twice_the_tokens():
    totals, ends = TenantTotals(2), Ends()
    for tenant, num_tokens in (("a", 10), ("b", 30), ("c", 20)):
        totals.add(ends.of(tenant, num_tokens))
    assert prompt_tokens(totals) == {"a": 10, "b": 30, OTHER: 20}
    totals.add(ends.of("c", 1))  # 21 against 10
    assert prompt_tokens(totals) == {"b": 30, "c": 1, OTHER: 20}
    totals.add(ends.of("a", 5))
    assert prompt_tokens(totals) == {"b": 30, "c": 1, OTHER: 25}


def test_who_is_called_other_is_among_the_others():
    totals, ends = TenantTotals(2), Ends()
    totals.add(ends.of(OTHER, 7))
    totals.add(ends.of("a", 1, Outcome.FAILED))
    assert prompt_tokens(totals) == {"a": 1, OTHER: 7}
    assert totals.by_tenant()["a"].unfinished_requests == 1


def test_b80_sums_never_fall_and_miss_nothing():
    """What series gain from one page to the next, new ones from 0, is what was done."""
    draw, totals, ends = Random(80), TenantTotals(5), Ends()
    before = prompt_tokens(totals)
    for _ in range(1000):
        num_tokens = draw.randrange(100)
        totals.add(ends.of(f"tenant {int(draw.paretovariate(0.5)) % 50}", num_tokens))
        after = prompt_tokens(totals)
        gains = [after[tenant] - before.get(tenant, 0) for tenant in after]
        assert min(gains) >= 0
        assert sum(gains) == num_tokens
        assert len(after) <= 6
        before = after
