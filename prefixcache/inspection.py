"""What the cache tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.namespace import decode_fields
from prefixcache.radix_node import RadixNode
from prefixcache.tier import TierStats
from prefixcache.token_chunks import unpack_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts of blocks. `num_free + num_idle + num_live == num_blocks`, always."""

    num_blocks: int
    num_free: int
    num_idle: int
    """Cached blocks that no handle holds; those that are not pinned can be evicted."""
    num_live: int
    """Blocks that at least one handle holds."""
    num_pinned: int
    """Blocks that pins hold, whether or not handles do too."""
    num_pinned_only: int
    """Those of them that no handle holds: the part of `num_idle` that cannot be evicted."""
    num_live_unshared: int
    """Blocks that the live handles would hold if none were shared."""
    num_used_slots: int
    """Slots of the live blocks without those behind a handle's last token."""
    num_evicted: int
    """Blocks evicted so far."""
    num_copied: int
    """Blocks copied so far, counted when the copy is reported as executed."""
    num_nodes: int
    """Nodes of the tree."""
    tiers: tuple[TierStats, ...] = ()
    """Of the tiers behind the pool, the nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDump:
    """One node of the tree: a run of tokens and their blocks."""

    id: int
    parent_id: int
    """0 for the first node of a prompt."""
    public: bool
    model: str
    adapter: str
    tenant: str
    """The owner of a private node; empty for a public one."""
    token_ids: tuple[int, ...]
    block_ids: tuple[BlockId, ...]
    num_live_blocks: int
    """Blocks of the run that handles hold."""
    num_readers: int
    """The most handles that hold one block of the run."""
    last_used: int
    """Number of the latest request when it was used last."""
    num_uses: int
    """Requests that used it after the one that made it."""
    is_output: bool
    """Whether its tokens were generated, and not a prompt's."""
    priority: int


def dump_node(node: RadixNode, domain: bytes, pool: BlockPool) -> NodeDump:
    """The dump of one node below a root. O(tokens)."""
    parent = node.parent
    assert parent is not None
    model, adapter = decode_fields(domain)
    num_live_blocks, num_readers = pool.num_readers(node.block_ids)
    return NodeDump(
        id=node.serial,
        parent_id=0 if parent.is_root else parent.serial,
        public=node.is_public,
        model=model,
        adapter=adapter,
        tenant=node.owner.tenant,
        token_ids=tuple(unpack_tokens(node.edge)),
        block_ids=tuple(node.block_ids),
        num_live_blocks=num_live_blocks,
        num_readers=num_readers,
        last_used=node.last_used,
        num_uses=node.num_uses,
        is_output=node.is_output,
        priority=node.priority,
    )
