"""What the page tells of tenants."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from prefixcache_worker.server.metrics.families import Labels, counters, gauges
from prefixcache_worker.server.metrics.reading import Reading


def tenant_families(reading: Reading) -> Iterator[Metric]:
    """O(named tenants)."""
    requests: dict[Labels, float] = {}
    prompt_tokens: dict[Labels, float] = {}
    generated_tokens: dict[Labels, float] = {}
    for tenant, totals in reading.totals.items():
        requests[tenant, "finished"] = totals.finished_requests
        requests[tenant, "unfinished"] = totals.unfinished_requests
        prompt_tokens[tenant, "cached"] = totals.cached_tokens
        prompt_tokens[tenant, "computed"] = totals.computed_tokens
        generated_tokens[tenant,] = totals.completion_tokens
    yield counters(
        "tenant_requests",
        "Requests of a tenant that have ended, and whether well.",
        ["tenant", "outcome"],
        requests,
    )
    yield counters(
        "tenant_prompt_tokens",
        "Prompt tokens of a tenant's requests that have ended, by where their KV came from.",
        ["tenant", "source"],
        prompt_tokens,
    )
    yield counters(
        "tenant_generated_tokens",
        "Tokens of answers to a tenant's requests that have ended.",
        ["tenant"],
        generated_tokens,
    )
    yield gauges(
        "tenant_blocks",
        "Blocks that are a tenant's own, cached or in use.",
        ["tenant"],
        {(tenant,): usage.num_blocks for tenant, usage in reading.holdings.items()},
    )
    yield counters(
        "tenant_blocks_evicted",
        "Private cached blocks of a tenant that were evicted; anew when it has held nothing for long.",
        ["tenant"],
        {(tenant,): usage.num_evicted_blocks for tenant, usage in reading.holdings.items()},
    )
