"""What a cache under test is made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support.prefix_oracle import PrefixOracle
from xxhash import xxh3_64_intdigest

from prefixcache import BlockId, ChunkHash, EventLog, PrefixCache, TenantQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Makes caches, and the oracles that go with them."""

    num_blocks: int = 24
    block_size: int = 4
    policy: str = "lru"
    chunk_hash: ChunkHash = xxh3_64_intdigest
    public_after_tenants: int | None = None
    max_pinned_share: float = 0.5

    @property
    def max_pinned_blocks(self) -> int:
        return int(self.max_pinned_share * self.num_blocks)

    def make_cache(
        self,
        *,
        quotas: Mapping[str, TenantQuota],
        events: EventLog,
        clock: Callable[[], float],
        on_free: Callable[[list[BlockId]], None],
    ) -> PrefixCache:
        return PrefixCache(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            policy=self.policy,
            quotas=quotas,
            max_pinned_share=self.max_pinned_share,
            public_after_tenants=self.public_after_tenants,
            events=events,
            clock=clock,
            chunk_hash=self.chunk_hash,
            on_free=on_free,
        )

    def make_oracle(self) -> PrefixOracle:
        """It remembers who computed what for as long as the cache does."""
        return PrefixOracle(
            self.block_size, self.chunk_hash, self.public_after_tenants, num_seen=4 * self.num_blocks
        )


def four_bit_hash(chunk: bytes) -> int:
    """Most chunks collide with some other."""
    return xxh3_64_intdigest(chunk) & 0xF
