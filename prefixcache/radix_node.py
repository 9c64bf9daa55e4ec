"""One node of the radix tree."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from prefixcache.block_keys import BlockKey
from prefixcache.block_pool import BlockId
from prefixcache.namespace import PUBLIC_SCOPE
from prefixcache.quota import MAX_PAYERS, TenantAccount
from prefixcache.shadow_cache import Footprint
from prefixcache.token_chunks import TOKEN_BYTES

ChildKey = tuple[bytes, int | bytes]
"""Scope, and the hash of the first chunk. A tail, which has no whole chunk, goes by its bytes."""

OrderEntry = tuple[int, float, bool, int, "RadixNode"]
"""Priority, rank, whether it is a prompt's, serial; so entries of different nodes are never equal."""

MAX_TURN = 6
"""Turns that are told apart; later ones count as this one."""


class Visit(NamedTuple):
    """What a request tells the nodes it uses."""

    tick: int
    """Number of the request: the logical time at which it came."""
    account: TenantAccount
    turn: int = 0
    """How often the conversation had been continued before, as far as the cache remembers."""
    path_turn: int = 0
    """What the nodes that it matches have at least; see `Turn`."""
    priority: int = 0
    priority_ends: float = inf
    """Seconds of the cache's clock."""


class RadixNode:
    """A run of chunks, the blocks that hold their KV, and how they were used.

    A node whose edge is shorter than one chunk is a *tail*: one block, partly filled, no
    children. It is never shared, only copied from.

    Invariants, proved by `check`:
    - every chunk has one block; only a tail has less than one chunk;
    - a child has its parent's scope, unless the parent is public;
    - a node was used no later than its parent, for every use goes through the parent;
    - a private node belongs to one tenant and nobody pays for it; a public one has its payers.
    """

    __slots__ = (
        "block_ids",
        "children",
        "created",
        "depth",
        "edge",
        "footprint",
        "is_output",
        "key",
        "last_used",
        "lost_key",
        "num_uses",
        "order_entry",
        "owner",
        "packed_keys",
        "parent",
        "payers",
        "priority",
        "priority_ends",
        "queue",
        "rank",
        "scope",
        "serial",
        "stored_seconds",
        "turn",
        "used_seconds",
    )

    def __init__(
        self,
        *,
        serial: int,
        key: ChildKey,
        parent: RadixNode | None,
        edge: bytes,
        block_ids: list[BlockId],
        owner: TenantAccount,
    ) -> None:
        self.serial = serial
        """Unique in the tree, for as long as the node lives."""
        self.key = key
        """What the parent finds it by. A root, which has no parent, goes by its domain."""
        self.scope = key[0]
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + len(parent.block_ids)
        """Blocks above it."""
        self.edge = edge
        """Packed tokens of the run."""
        self.block_ids: list[BlockId] = block_ids
        self.children: dict[ChildKey, RadixNode] = {}
        self.packed_keys = b""
        """Block keys of its first blocks, as many as were asked for so far; see `RadixTree.keys_of`.

        A root, which has no blocks, keeps the key that all paths start from."""
        self.owner = owner
        """The tenant's account, or the public one."""
        self.payers: tuple[TenantAccount, ...] = ()
        """Tenants that used a public node last, the latest last."""
        self.created = 0
        """Number of the request that made it."""
        self.last_used = 0
        """Logical time; see `CachedBlocks`."""
        self.num_uses = 0
        """Requests that used it after the one that made it."""
        self.is_output = False
        """Whether the tokens were generated, and not a prompt's."""
        self.footprint: Footprint | None = None
        """What the last use of the path to its end has left; the traffic sample's."""
        self.stored_seconds = 0.0
        """When it came into the tree, by the cache's clock."""
        self.used_seconds = 0.0
        """When it was touched last."""
        self.turn = 0
        """The latest turn among the requests that used it."""
        self.priority = 0
        self.priority_ends = inf
        self.queue = 0
        """Which queue of the eviction order it belongs to; the policy's, as `rank` is."""
        self.rank: float = 0
        """Place in that queue, the coldest first."""
        self.lost_key: BlockKey | None = None
        """Key of the first block of the run that was evicted right behind its end, if that is the latest."""
        self.order_entry: OrderEntry | None = None
        """What stands for it in the eviction order at the moment; that order's."""

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_leaf(self) -> bool:
        return not self.children

    @property
    def is_public(self) -> bool:
        return not self.scope

    @property
    def num_blocks(self) -> int:
        """Blocks from the root to its end."""
        return self.depth + len(self.block_ids)

    def is_tail(self, block_size: int) -> bool:
        return len(self.edge) < block_size * TOKEN_BYTES

    def copy_use_of(self, other: RadixNode) -> None:
        """Take over how the other was used: a node that is cut in two."""
        self.payers = other.payers
        self.created, self.last_used, self.num_uses = other.created, other.last_used, other.num_uses
        self.is_output, self.turn = other.is_output, other.turn
        self.priority, self.priority_ends = other.priority, other.priority_ends
        self.queue, self.rank = other.queue, other.rank
        self.stored_seconds, self.used_seconds = other.stored_seconds, other.used_seconds

    def lineage(self) -> list[RadixNode]:
        """The nodes from below the root down to this one. O(depth)."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def check(self, block_size: int) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        parent = self.parent
        assert parent is not None
        assert parent.children[self.key] is self
        assert self.depth == parent.num_blocks
        num_tokens, rest = divmod(len(self.edge), TOKEN_BYTES)
        assert rest == 0
        assert num_tokens > 0
        if self.is_tail(block_size):
            assert len(self.block_ids) == 1
            assert self.is_leaf
        else:
            assert num_tokens == len(self.block_ids) * block_size
        assert self.is_public or not self.payers
        assert len(set(self.payers)) == len(self.payers) <= MAX_PAYERS
        if not parent.is_root:
            assert not parent.is_tail(block_size)
            assert parent.scope in (PUBLIC_SCOPE, self.scope)
            assert parent.last_used >= self.last_used
