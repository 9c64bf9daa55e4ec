"""What the worker says of its cache: from proto messages to immutable Python values."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.v1 import cache_pb2
from prefixcache_client.fields import from_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Where the pool's blocks are. `free + idle + live == total`."""

    total: int
    free: int
    idle: int
    """Cached blocks that no request holds."""
    live: int
    """Blocks that at least one request holds."""
    live_unshared: int
    """Blocks that the live requests would hold if none were shared."""
    peak_live: int
    peak_live_unshared: int
    evicted: int
    copied: int
    block_bytes: int
    block_size: int
    used_slots: int
    """Slots of the live blocks without those behind a request's last token."""
    peak_used_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Tokens since the worker started. `cached + computed == prompt`."""

    prompt: int
    cached: int
    computed: int
    generated: int
    kv_rows_read: int
    """KV rows read by attention, a shared run counted once per step."""
    kv_rows_unshared: int
    """KV rows that would have been read without sharing."""
    restored: int
    """Of `cached`, those whose KV came back from a larger, slower tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Requests now, and since the worker started."""

    waiting: int
    running: int
    finished: int
    cancelled: int
    preemptions: int
    steps: int
    failed: int
    """Ended by an error of the worker."""
    peak_running: int
    promoted: int
    """Overtaken so often that they went before everything that came later; each choice counts."""
    followed: int
    """Times that a prompt waited for another one that began the same, and was not computed twice."""
    running_tokens: int
    """Rows of KV that the running sequences have, a shared one counted for each."""
    longest: int
    """Rows of the longest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """How long something took, over the last observations of it, by the worker's clock."""

    name: str
    """"queue", "first_token", "inter_token" or "request"."""
    count: int
    """Observations since the worker started."""
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionStats:
    """Blocks that left the cache for one cause."""

    cause: str
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """A larger, slower place where blocks go that are evicted from the pool. Counts of blocks."""

    name: str
    """"memory" or "file"."""
    num_blocks: int
    """As many as it can hold."""
    used_blocks: int
    """As many as it holds."""
    stored: int
    restored: int
    """Gone back to the pool."""
    evicted: int
    """Dropped, or given to the next tier, to make room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What the cache holds and what it saved."""

    blocks: BlockStats
    tokens: TokenStats
    requests: RequestStats
    tiers: tuple[TierStats, ...]
    """Behind the pool, the nearest first."""
    latencies: tuple[LatencyStats, ...]
    """Without those that nothing has been observed of."""
    evictions: tuple[EvictionStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """One node of the radix tree: a run of tokens and their blocks.

    Who is no admin sees public nodes and its own; of public ones nothing about their use, and no `last_used`.
    """

    id: int
    parent_id: int
    """0 for a child of the root."""
    public: bool
    """True when all tenants may share it."""
    tenant: str
    """The owner of a private node."""
    num_tokens: int
    num_blocks: int
    num_live_blocks: int
    num_readers: int
    """The most live requests that hold one block of the run."""
    preview: str
    """The beginning of the run as text, only for public nodes and the caller's own."""
    last_used: int
    """The cache's logical clock when the node was last used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSnapshot:
    """What a worker has saved."""

    num_blocks: int
    num_bytes: int
    """Of the file."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The radix tree, as far as the caller may see it."""

    nodes: tuple[TreeNode, ...]
    """Parents before children."""
    num_left_out: int
    """Nodes that were too many for one answer, the deepest ones."""


def stats_from_proto(response: cache_pb2.GetStatsResponse) -> Stats:
    """The counts."""
    return Stats(
        blocks=from_fields(BlockStats, response.blocks),
        tokens=from_fields(TokenStats, response.tokens),
        requests=from_fields(RequestStats, response.requests),
        tiers=tuple(from_fields(TierStats, tier) for tier in response.tiers),
        latencies=tuple(from_fields(LatencyStats, latency) for latency in response.latencies),
        evictions=tuple(from_fields(EvictionStats, eviction) for eviction in response.evictions),
    )


def saved_snapshot_from_proto(response: cache_pb2.SnapshotResponse) -> SavedSnapshot:
    """What was saved."""
    return from_fields(SavedSnapshot, response)


def tree_from_proto(response: cache_pb2.DumpTreeResponse) -> Tree:
    """The tree."""
    nodes = tuple(from_fields(TreeNode, node) for node in response.nodes)
    return Tree(nodes=nodes, num_left_out=response.num_left_out)
