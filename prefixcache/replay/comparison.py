"""Many caches on one trace, side by side, and what came of it in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefixcache.quota import TenantQuota
from prefixcache.replay.counts import ReplayCounts
from prefixcache.replay.optimum import Optimum
from prefixcache.replay.replayer import Replayer
from prefixcache.replay.trace import Trace, TraceRequest

OPTIMUM = "optimum"
"""Stands for a policy's name in the rows of the clairvoyant cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow:
    """What one policy made of the requests of one tenant, or of all, in a cache of one size."""

    policy: str
    num_blocks: int
    """The cache's size."""
    tenant: str | None
    """None for all tenants together."""
    num_requests: int
    num_refused: int
    """Requests that found no room."""
    num_prompt_ids: int
    """Prompt tokens, or prompt blocks where the trace has only those."""
    num_hit_ids: int
    hit_ratio: float
    share_of_optimum: float | None
    """The hits of all tenants divided by those of the clairvoyant cache, when it was asked for and has any.

    Can pass 1 on a trace of tokens, where the optimum has no parts of blocks."""
    num_evicted_blocks: int | None
    """Of a tenant: those of its private prefixes. None for the optimum."""


class Comparison:
    """A cache for each policy and size, all at the same point of the same trace."""

    def __init__(
        self,
        trace: Trace,
        *,
        policies: Sequence[str],
        capacities: Sequence[int],
        quotas: Mapping[str, TenantQuota] | None = None,
        with_optimum: bool = False,
    ) -> None:
        """Empty caches; `capacities` are their sizes in blocks. Raises InvalidArgumentError.

        With the optimum, about 4 bytes for each block of each request are kept.
        """
        self._capacities = capacities
        self._replayers = [
            Replayer(trace, policy=policy, num_blocks=num_blocks, quotas=quotas)
            for num_blocks in capacities
            for policy in policies
        ]
        self._optimum = Optimum(trace) if with_optimum else None
        self._tenants: set[str] = set()

    def replay(self, request: TraceRequest) -> None:
        """Give the next request to every cache."""
        for replayer in self._replayers:
            replayer.replay(request)
        if self._optimum is not None:
            self._optimum.add(request)
        self._tenants.add(request.namespace.tenant)

    def tenants(self) -> list[str]:
        """Those whose requests were replayed so far. O(tenants)."""
        return sorted(self._tenants)

    def rows(self) -> list[ReplayRow]:
        """What came of the requests so far: for each size and policy all requests, then each tenant's.

        With one tenant only, all requests are its. The optimum comes last for each size, and only for
        all requests: it does not care whose they are.
        """
        rows = []
        tenants = self.tenants() if len(self._tenants) > 1 else []
        for num_blocks in self._capacities:
            best = None if self._optimum is None else self._optimum.counts(num_blocks)
            for replayer in self._replayers:
                if replayer.num_blocks == num_blocks:
                    policy, counts = replayer.policy, replayer.counts
                    total, num_evicted = ReplayCounts.total(counts.values()), replayer.num_evicted_blocks()
                    rows.append(_row(policy, num_blocks, None, total, num_evicted, best))
                    for tenant in tenants:
                        num_evicted = replayer.num_evicted_blocks(tenant)
                        rows.append(_row(policy, num_blocks, tenant, counts[tenant], num_evicted, None))
            if best is not None:
                rows.append(_row(OPTIMUM, num_blocks, None, best, None, best))
        return rows


def _row(
    policy: str,
    num_blocks: int,
    tenant: str | None,
    counts: ReplayCounts,
    num_evicted_blocks: int | None,
    best: ReplayCounts | None,
) -> ReplayRow:
    return ReplayRow(
        policy=policy,
        num_blocks=num_blocks,
        tenant=tenant,
        num_requests=counts.num_requests,
        num_refused=counts.num_refused,
        num_prompt_ids=counts.num_prompt_ids,
        num_hit_ids=counts.num_hit_ids,
        hit_ratio=counts.num_hit_ids / max(1, counts.num_prompt_ids),
        share_of_optimum=counts.num_hit_ids / best.num_hit_ids if best and best.num_hit_ids else None,
        num_evicted_blocks=num_evicted_blocks,
    )
