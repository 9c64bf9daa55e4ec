"""A cache at work on a recorded trace, without a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from prefixcache.cache import PrefixCache
from prefixcache.errors import OutOfBlocksError, QuotaExceededError
from prefixcache.handle import CacheHandle
from prefixcache.quota import TenantQuota
from prefixcache.replay.counts import ReplayCounts
from prefixcache.replay.trace import Trace, TraceRequest
from prefixcache.token_chunks import TOKEN_BYTES, PackedTokens

_SPARE_TOKEN = bytes(TOKEN_BYTES)


class Replayer:
    """Takes requests one after the other through a `PrefixCache` of its own, as an engine would.

    The cache's clock shows the time of the trace. Hits are counted when a request is acquired.

    Where an id stands for a whole block, it becomes one token in a cache with a block size of 1.
    A cache always leaves a token of the prompt to compute, so there a further token follows the
    prompt; it is never published, and one block beyond `num_blocks` holds it. So the hits are
    exactly those of the longest prefix in `num_blocks` blocks.
    """

    def __init__(
        self, trace: Trace, *, policy: str, num_blocks: int, quotas: Mapping[str, TenantQuota] | None = None
    ) -> None:
        """An empty cache; give the trace's requests to `replay`. Raises InvalidArgumentError."""
        self.policy = policy
        self.num_blocks = num_blocks
        self.counts: defaultdict[str, ReplayCounts] = defaultdict(ReplayCounts)
        """By tenant."""
        self._spare = b"" if trace.has_tokens else _SPARE_TOKEN
        self._now = 0.0
        num_spare_blocks = len(self._spare) // TOKEN_BYTES
        self._cache = PrefixCache(
            num_blocks=num_blocks + num_spare_blocks,
            block_size=trace.block_size if trace.has_tokens else 1,
            policy=policy,
            quotas={tenant: _with_room(quota, num_spare_blocks) for tenant, quota in (quotas or {}).items()},
            clock=lambda: self._now,
        )

    def num_evicted_blocks(self, tenant: str | None = None) -> int:
        """Blocks evicted so far; with a tenant, those of its private prefixes."""
        if tenant is None:
            return self._cache.stats().num_evicted
        known = tenant in self._cache.tenants()  # one that was never let in is not
        return self._cache.usage(tenant).num_evicted_blocks if known else 0

    def replay(self, request: TraceRequest) -> None:
        """Acquire, publish and release. O(blocks + evicted * log leaves)."""
        self._now = request.arrival_seconds
        counts = self.counts[request.namespace.tenant]
        counts.num_requests += 1
        counts.num_prompt_ids += len(request.prompt_ids) // TOKEN_BYTES
        handle = self._acquire(request)
        if handle is None:
            counts.num_refused += 1
            return
        counts.num_hit_ids += handle.num_cached_tokens
        num_unwritten = 1 if self._spare or request.output_ids else 0  # nobody reads the last one generated
        self._cache.complete_copies(handle)
        self._cache.publish(handle, handle.num_tokens - num_unwritten, include_tail=True)
        self._cache.release(handle)

    def _acquire(self, request: TraceRequest) -> CacheHandle | None:
        """Room for the whole request, or None when there is not enough."""
        prompt = PackedTokens(request.prompt_ids + self._spare)
        try:
            handle = self._cache.acquire(prompt, request.namespace, num_public_tokens=request.num_public_ids)
        except (OutOfBlocksError, QuotaExceededError):
            return None
        if request.output_ids:
            try:
                self._cache.extend(handle, request.output_ids)
            except (OutOfBlocksError, QuotaExceededError):
                self._cache.release(handle)
                return None
        return handle


def _with_room(quota: TenantQuota, num_blocks: int) -> TenantQuota:
    """A quota that allows so many blocks in use besides."""
    if quota.ceiling_blocks is None:
        return quota
    return replace(quota, ceiling_blocks=quota.ceiling_blocks + num_blocks)
