"""From a live cache to the index of a snapshot, and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, chain, islice
from math import inf
from typing import NamedTuple

from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.cached_blocks import CachedBlocks
from prefixcache.errors import InvalidArgumentError
from prefixcache.quota import TenantAccount, TenantLedger
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import RadixTree
from prefixcache.snapshot import RowReader, Snapshot
from prefixcache.snapshot_index import SnapshotIndex, SnapshotNode
from prefixcache.token_chunks import TOKEN_BYTES


class NodeCopy(NamedTuple):
    """What a snapshot wants of a node, as it was at one moment."""

    serial: int
    parent_serial: int | None
    """None for the first node of a prompt."""
    domain: bytes
    scope: bytes
    tenant: str
    edge: bytes
    block_ids: Sequence[BlockId]
    last_used: int
    payers: Sequence[TenantAccount]
    created: int
    is_output: bool
    num_uses: int
    priority: int
    """The one that does not end."""
    turn: int


class TreeCopy(NamedTuple):
    """A tree at one moment. Goes on saying the same whatever happens to the tree."""

    block_size: int
    last_tick: int
    nodes: Sequence[NodeCopy]


def copy_tree(tree: RadixTree, last_tick: int) -> TreeCopy:
    """All that `index_of` needs: what has to be done while the tree keeps still. O(nodes + blocks)."""
    nodes = [
        NodeCopy(
            node.serial,
            parent.serial if parent.parent is not None else None,
            domain,
            node.scope,
            node.owner.tenant,
            node.edge,
            node.block_ids.copy(),
            node.last_used,
            node.payers,
            node.created,
            node.is_output,
            node.num_uses,
            node.priority if node.priority_ends == inf else 0,
            node.turn,
        )
        for domain, node in tree.nodes()
        if (parent := node.parent) is not None
    ]
    return TreeCopy(tree.block_size, last_tick, nodes)


def index_of(tree: TreeCopy) -> tuple[SnapshotIndex, list[BlockId]]:
    """The tree as plain data, and the ids of its blocks in that order. O(bytes + nodes log nodes).

    What was promised in seconds is not in it: pins, and priorities that end.
    """
    ordered = _breadth_first(tree)
    position = {node.serial: place for place, node in enumerate(ordered)}
    age_rank = {serial: rank for rank, serial in enumerate(sorted(position))}
    nodes = [
        SnapshotNode(
            parent=None if node.parent_serial is None else position[node.parent_serial],
            domain=node.domain,
            scope=node.scope,
            tenant=node.tenant,
            edge=node.edge,
            num_blocks=len(node.block_ids),
            last_used=node.last_used,
            age_rank=age_rank[node.serial],
            payers=tuple(account.tenant for account in node.payers),
            policy={
                "created": node.created,
                "is_output": int(node.is_output),
                "num_uses": node.num_uses,
                "priority": node.priority,
                "turn": node.turn,
            },
        )
        for node in ordered
    ]
    index = SnapshotIndex(block_size=tree.block_size, clock=tree.last_tick, nodes=nodes)
    return index, [block_id for node in ordered for block_id in node.block_ids]


def restore_blocks(
    snapshot: Snapshot,
    read_row: RowReader | None,
    pool: BlockPool,
    tree: RadixTree,
    blocks: CachedBlocks,
    ledger: TenantLedger,
) -> int:
    """Fill an empty tree, what was used last first, and return how many blocks it has now.

    Raises InvalidArgumentError when the tree is not empty, or there is a reader without rows or
    rows without a reader, and what reading rows raises; only rows of free blocks have changed
    then. O(bytes).
    """
    if tree.num_nodes:
        raise InvalidArgumentError(
            f"the cache has {tree.num_nodes} nodes; reset it before restoring a snapshot"
        )
    if snapshot.has_rows != (read_row is not None):
        with_or_without = "with" if snapshot.has_rows else "without"
        raise InvalidArgumentError(
            f"the snapshot was saved {with_or_without} rows; restore it {with_or_without} read_row"
        )
    runs = _choose_runs(snapshot.index, pool.num_free)
    block_ids = pool.allocate(sum(run.num_blocks for run in runs))
    if read_row is not None:
        rows = chain.from_iterable(range(run.first_row, run.first_row + run.num_blocks) for run in runs)
        try:
            snapshot.read_rows(zip(rows, block_ids, strict=True), read_row)
        except BaseException:
            pool.release(block_ids)
            raise
    blocks.resume_at(snapshot.index.clock)
    first_serial = tree.reserve_serials(len(snapshot.index.nodes))
    nodes: dict[int, RadixNode] = {}
    untaken = iter(block_ids)
    for run in runs:
        saved = snapshot.index.nodes[run.position]
        parent = tree.root_of(saved.domain) if saved.parent is None else nodes.get(saved.parent)
        taken = list(islice(untaken, run.num_blocks))
        edge = saved.edge[: run.num_blocks * tree.chunk_bytes]
        if parent is None or tree.is_taken(parent, saved.scope, edge):
            pool.release(taken)  # another chunk with the same hash has its place, or that of one above
            continue
        node = _restore_node(saved, parent, taken, tree, ledger, serial=first_serial + saved.age_rank)
        blocks.take_in_restored(node)
        nodes[run.position] = node
    for node in nodes.values():
        blocks.release(node.block_ids, node.owner)
    return sum(len(node.block_ids) for node in nodes.values())


class _Run(NamedTuple):
    """A node of an index, as far as it is restored."""

    position: int
    num_blocks: int
    first_row: int
    """Number of its first block in the file."""


def _choose_runs(index: SnapshotIndex, num_blocks: int) -> list[_Run]:
    """What of an index fits into so many blocks: what was used last, parents first. O(nodes log nodes)."""
    first_rows = [0, *accumulate(node.num_blocks for node in index.nodes)]
    # A parent was used no earlier than its children and stands before them, so it stays before them.
    latest_first = sorted(range(len(index.nodes)), key=lambda place: -index.nodes[place].last_used)
    runs = []
    for position in latest_first:
        num_fitting = min(index.nodes[position].num_blocks, num_blocks)
        if num_fitting:
            runs.append(_Run(position, num_fitting, first_rows[position]))
            num_blocks -= num_fitting
    return runs


def _restore_node(
    saved: SnapshotNode,
    parent: RadixNode,
    block_ids: list[BlockId],
    tree: RadixTree,
    ledger: TenantLedger,
    *,
    serial: int,
) -> RadixNode:
    """Put a saved node into the tree, cut to the blocks given."""
    owner = ledger.account(saved.tenant) if saved.scope else ledger.public
    edge = saved.edge[: len(block_ids) * tree.chunk_bytes]
    node = tree.insert(parent, saved.scope, edge, block_ids, owner, serial=serial)
    node.payers = tuple(map(ledger.account, saved.payers))
    node.last_used = saved.last_used
    node.created = int(saved.policy["created"])
    node.is_output = bool(saved.policy["is_output"])
    node.num_uses = int(saved.policy["num_uses"])
    node.priority = int(saved.policy["priority"])
    node.turn = int(saved.policy["turn"])
    return node


def _breadth_first(tree: TreeCopy) -> list[NodeCopy]:
    """The nodes in the order of a `SnapshotIndex`."""
    chunk_bytes = tree.block_size * TOKEN_BYTES
    children: defaultdict[int | None, list[NodeCopy]] = defaultdict(list)
    for node in tree.nodes:
        children[node.parent_serial].append(node)
    for siblings in children.values():
        siblings.sort(key=lambda node: (node.domain, node.scope, node.edge[:chunk_bytes]))
    ordered = list(children[None])
    for node in ordered:  # which grows meanwhile
        ordered += children.get(node.serial, ())
    return ordered
