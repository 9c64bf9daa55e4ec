"""What the engine counts. Field names are those of `prefixcache.v1`."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache import BlockLifeStats


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Where the pool's blocks are: `free + idle + live == total`.

    Of the `live * block_size` slots that requests hold, `used_slots` have a token; the others are waste.
    """

    total: int
    free: int
    idle: int
    live: int
    live_unshared: int
    peak_live: int
    peak_live_unshared: int
    evicted: int
    copied: int
    block_bytes: int
    block_size: int
    used_slots: int
    peak_used_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Tokens since the start: `cached + computed == prompt`, counted once, at admission."""

    prompt: int
    cached: int
    computed: int
    generated: int
    kv_rows_read: int
    kv_rows_unshared: int
    restored: int
    """Of `cached`, those whose rows came from a tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """Blocks of one tier behind the pool."""

    name: str
    num_blocks: int
    used_blocks: int
    stored: int
    restored: int
    evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Requests now (waiting, running) and since the start."""

    waiting: int
    running: int
    finished: int
    cancelled: int
    failed: int
    preemptions: int
    steps: int
    peak_running: int
    promoted: int
    """Sequences that were overtaken so often that they went before everything that came later."""
    followed: int
    """Times that a prompt waited for another one that began the same."""
    running_tokens: int
    """Rows of KV that the running sequences have, a shared one counted for each."""
    longest: int
    """Rows of the longest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingStats:
    """Sequences in the queue by their priority: below 0, 0, or above it."""

    low: int
    normal: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupStats:
    """Prompts that were looked for in the cache, each once, when it first ran."""

    queried_tokens: int
    hit_tokens: int
    """Those of them that were found."""
    bypassed_requests: int
    """Requests that asked for nothing: with the cache off, or with scores of the prompt, which it has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """All counts at one moment between two steps."""

    blocks: BlockStats
    tokens: TokenStats
    requests: RequestStats
    waiting: WaitingStats
    lookups: LookupStats
    life: BlockLifeStats | None
    """Of cached blocks; None where nothing is shared."""
    tiers: tuple[TierStats, ...]
    """The nearest first."""
