"""Kept prefixes and what tenants have cost: from proto messages to immutable Python values."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.v1 import cache_pb2
from prefixcache_client.answers import Usage
from prefixcache_client.fields import from_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A prefix that the worker keeps warm."""

    prefix_id: str
    """What `generate(prefix=...)` takes."""
    tenant: str
    label: str
    num_tokens: int
    num_kept_tokens: int
    """Those in whole blocks: only these are kept."""
    num_blocks: int
    public: bool
    """True when all tenants may read it."""
    ttl_seconds: float
    """It is kept for so long after its last use; 0: for ever."""
    seconds_left: float
    """Until it ends unless it is used; 0: it does not end. Of a public one only an admin is told."""
    num_uses: int
    """Requests that have begun with it. Of a public one only an admin is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedPrefix:
    """What `create_prefix` has done."""

    prefix: Prefix
    usage: Usage | None
    """What computing it has cost; None when the tenant had it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """What one tenant's requests have cost since the start, and what it holds now."""

    tenant: str
    """Empty for the sum of those that are not remembered one by one."""
    finished_requests: int
    unfinished_requests: int
    """Ended by the client, a deadline or an error."""
    live_requests: int
    prompt_tokens: int
    """Of all requests that began. `cached_tokens + computed_tokens == prompt_tokens`."""
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    written_tokens: int
    """Tokens whose KV the requests left in the cache."""
    block_seconds: float
    """Blocks that requests held, times the seconds."""
    num_blocks: int
    """Blocks of its own, cached or in use."""
    num_charged_blocks: float
    """The same and its part of public blocks; only an admin is told."""
    num_pinned_blocks: int
    """Blocks that its prefixes keep."""
    num_evicted_blocks: int
    floor_blocks: int
    ceiling_blocks: int | None


def prefix_from_proto(message: cache_pb2.Prefix) -> Prefix:
    """One prefix."""
    return from_fields(Prefix, message)


def created_prefix_from_proto(response: cache_pb2.CreatePrefixResponse) -> CreatedPrefix:
    """A prefix and its price."""
    usage = from_fields(Usage, response.usage) if response.HasField("usage") else None
    return CreatedPrefix(prefix=prefix_from_proto(response.prefix), usage=usage)


def usage_from_proto(response: cache_pb2.GetUsageResponse) -> tuple[TenantUsage, ...]:
    """One for each tenant."""
    return tuple(
        from_fields(
            TenantUsage,
            tenant,
            ceiling_blocks=tenant.ceiling_blocks if tenant.HasField("ceiling_blocks") else None,
        )
        for tenant in response.tenants
    )
