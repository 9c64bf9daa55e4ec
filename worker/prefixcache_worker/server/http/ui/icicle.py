"""The radix tree as an icicle: under each cell those of its children, as wide as what hangs on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import xxhash

from prefixcache import NodeView, TreeView
from prefixcache.token_chunks import TOKEN_BYTES

MAX_ACROSS = 400
"""A cell that would be narrower than one part in so many of the picture is merged with its neighbours."""
MAX_DEPTH = 12
"""Rows of cells."""
MAX_TENANTS = 12
"""Told by name; the largest."""

NodeKey = str
"""Names a node by its tokens, so that it stays the same from one look to the next."""


class Measure(Enum):
    """What the width of a cell stands for."""

    TOKENS = "tokens"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One node, or several that are too narrow to be seen one by one."""

    key: NodeKey
    parent: int
    """Its place in the list of cells; -1 in the uppermost row."""
    node: NodeView | None
    """The node; None of several."""
    public: bool
    tenant: str
    """Empty of several owners' too."""
    num_nodes: int
    """Those that it stands for."""
    num_tokens: int
    num_blocks: int
    total_tokens: int
    """With those of all nodes below."""
    total_blocks: int
    num_live_blocks: int
    num_readers: int
    last_used: int
    """The latest of several."""
    num_below: int
    """Nodes below that are in no cell, for want of rows."""


class TenantShare(NamedTuple):
    """What one tenant, or everybody in common, has in the tree."""

    tenant: str
    """Empty for what is public."""
    num_tokens: int
    num_blocks: int
    num_live_blocks: int


class Icicle:
    """One look at the tree, summed up, to be cut into pictures of any part of it."""

    def __init__(self, view: TreeView, *, block_size: int) -> None:
        """O(nodes)."""
        self.nodes = view.nodes
        self.num_left_out = view.num_left_out
        self.latest_use = max((node.last_used for node in view.nodes), default=0)
        """The clock's reading that ages are told from; 0 where none may be told."""
        place = {node.id: index for index, node in enumerate(view.nodes)}
        self._parents = [place.get(node.parent_id, -1) for node in view.nodes]
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        for index, parent in enumerate(self._parents):
            self._children[parent].append(index)
        self._keys = self._named(block_size * TOKEN_BYTES)
        self._place = {key: index for index, key in enumerate(self._keys)}
        self._totals = {
            Measure.TOKENS: self._summed([node.num_tokens for node in view.nodes]),
            Measure.BLOCKS: self._summed([node.num_blocks for node in view.nodes]),
        }
        self._num_descendants = self._summed([1] * len(view.nodes))

    def tenants(self) -> list[TenantShare]:
        """Who has how much, the largest first, at most MAX_TENANTS. O(nodes)."""
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for node in self.nodes:
            counts = sums["" if node.public else node.tenant]
            counts[0] += node.num_tokens
            counts[1] += node.num_blocks
            counts[2] += node.num_live_blocks
        shares = [TenantShare(tenant, *counts) for tenant, counts in sums.items()]
        shares.sort(key=lambda share: (-share.num_blocks, share.tenant))
        return shares[:MAX_TENANTS]

    def total(self, measure: Measure) -> int:
        """Of the whole tree."""
        totals = self._totals[measure]
        return sum(totals[index] for index in self._children[-1])

    def __contains__(self, key: object) -> bool:
        """Whether a node of this name is there."""
        return key in self._place

    def lineage(self, key: NodeKey | None) -> list[tuple[NodeKey, NodeView]]:
        """From the uppermost row down to this node; empty of None, the whole tree."""
        index = -1 if key is None else self._place[key]
        line = []
        while index >= 0:
            line.append((self._keys[index], self.nodes[index]))
            index = self._parents[index]
        return line[::-1]

    def cells(self, root: NodeKey | None, measure: Measure) -> list[Cell]:
        """The picture of what hangs on a node, itself on top, or of the whole tree; row by row.

        At most MAX_DEPTH * 3 * MAX_ACROSS cells. Requires: the node is there. O(cells + their children).
        """
        totals = self._totals[measure]
        if root is None:
            whole, row = self.total(measure), [(-1, -1)]
            cells: list[Cell] = []
        else:
            top = self._place[root]
            whole, row = totals[top], [(top, 0)]
            cells = [self._cell(top, -1, is_last=False)]
        narrowest = whole / MAX_ACROSS
        for depth in range(len(cells) + 1, MAX_DEPTH + 1):
            below: list[tuple[int, int]] = []
            for index, place in row:
                narrow = []
                for child in self._children.get(index, ()):
                    if totals[child] < narrowest:
                        narrow.append(child)
                        continue
                    below.append((child, len(cells)))
                    cells.append(self._cell(child, place, is_last=depth == MAX_DEPTH))
                cells += self._merged(narrow, index, place, narrowest, totals)
            row = below
        return cells

    def _cell(self, index: int, parent: int, *, is_last: bool) -> Cell:
        node = self.nodes[index]
        return Cell(
            key=self._keys[index],
            parent=parent,
            node=node,
            public=node.public,
            tenant=node.tenant,
            num_nodes=1,
            num_tokens=node.num_tokens,
            num_blocks=node.num_blocks,
            total_tokens=self._totals[Measure.TOKENS][index],
            total_blocks=self._totals[Measure.BLOCKS][index],
            num_live_blocks=node.num_live_blocks,
            num_readers=node.num_readers,
            last_used=node.last_used,
            num_below=self._num_descendants[index] - 1 if is_last else 0,
        )

    def _merged(
        self, indexes: Sequence[int], parent_index: int, parent: int, narrowest: float, totals: Sequence[int]
    ) -> Iterator[Cell]:
        """Narrow siblings as one cell for each owner; those whose owners have too little, as one more."""
        by_owner: defaultdict[tuple[bool, str], list[int]] = defaultdict(list)
        for index in indexes:
            by_owner[self.nodes[index].public, self.nodes[index].tenant].append(index)
        others: list[int] = []
        above = "" if parent_index < 0 else self._keys[parent_index]
        for (public, tenant), owned in by_owner.items():
            if len(by_owner) > 1 and sum(totals[index] for index in owned) < narrowest:
                others += owned
            else:
                yield self._several(owned, f"{above}+{tenant}", parent, public=public, tenant=tenant)
        if others:
            yield self._several(others, f"{above}++", parent, public=False, tenant="")

    def _several(
        self, indexes: Sequence[int], key: NodeKey, parent: int, *, public: bool, tenant: str
    ) -> Cell:
        nodes = [self.nodes[index] for index in indexes]
        tokens = sum(self._totals[Measure.TOKENS][index] for index in indexes)
        blocks = sum(self._totals[Measure.BLOCKS][index] for index in indexes)
        return Cell(
            key=key,
            parent=parent,
            node=None,
            public=public,
            tenant=tenant,
            num_nodes=sum(self._num_descendants[index] for index in indexes),
            num_tokens=tokens,
            num_blocks=blocks,
            total_tokens=tokens,
            total_blocks=blocks,
            num_live_blocks=sum(node.num_live_blocks for node in nodes),
            num_readers=max(node.num_readers for node in nodes),
            last_used=max(node.last_used for node in nodes),
            num_below=0,
        )

    def _summed(self, values: list[int]) -> list[int]:
        """Each value and those of all nodes below, which come later."""
        totals = list(values)
        for index in range(len(totals) - 1, -1, -1):
            if (parent := self._parents[index]) >= 0:
                totals[parent] += totals[index]
        return totals

    def _named(self, chunk_bytes: int) -> list[NodeKey]:
        """By the first chunk, which siblings differ in, and which stays when a node grows or is cut."""
        keys: list[NodeKey] = []
        times_used: defaultdict[NodeKey, int] = defaultdict(int)
        for node, parent in zip(self.nodes, self._parents, strict=True):
            above = keys[parent] if parent >= 0 else ""
            owner = f"{above}/{node.tenant}/{node.public}/".encode()
            key = xxhash.xxh3_64_hexdigest(owner + node.tokens[:chunk_bytes])
            times_used[key] += 1
            if times_used[key] > 1:  # one tenant's salts may have the same tokens
                key = f"{key}-{times_used[key]}"
            keys.append(key)
        return keys
