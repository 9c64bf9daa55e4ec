"""The tree as somebody may see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from prefixcache.block_pool import BlockPool
from prefixcache.quota import TenantAccount
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import RadixTree
from prefixcache.token_chunks import TOKEN_BYTES


class NodeView(NamedTuple):
    """A run of tokens and their blocks."""

    id: int
    parent_id: int
    """0 for the first node of a prompt."""
    public: bool
    tenant: str
    """The owner of a private node; empty for a public one."""
    tokens: bytes
    """Packed."""
    num_blocks: int
    num_live_blocks: int = 0
    """Blocks that handles hold."""
    num_readers: int = 0
    """The most handles that hold one block."""
    last_used: int = 0
    """Number of the latest request when it was used last."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES


class TreeView(NamedTuple):
    """Nodes, those nearest to the root first."""

    nodes: list[NodeView]
    num_left_out: int
    """Nodes that would be here too if more had been asked for, `max_depth` aside."""


def view_of_all(tree: RadixTree, pool: BlockPool, max_depth: int, max_nodes: int | None) -> TreeView:
    """Every node as it is."""
    nodes = (node for _, node in tree.nodes(max_depth))
    views = []
    for node in islice(nodes, max_nodes):
        assert node.parent is not None
        num_live_blocks, num_readers = pool.num_readers(node.block_ids)
        views.append(
            NodeView(
                id=node.serial,
                parent_id=0 if node.parent.is_root else node.parent.serial,
                public=node.is_public,
                tenant=node.owner.tenant,
                tokens=node.edge,
                num_blocks=len(node.block_ids),
                num_live_blocks=num_live_blocks,
                num_readers=num_readers,
                last_used=node.last_used,
            )
        )
    return TreeView(views, sum(1 for _ in nodes))


def view_of_owners(
    tree: RadixTree,
    pool: BlockPool,
    owners: Iterable[TenantAccount],
    max_depth: int,
    max_nodes: int | None,
) -> TreeView:
    """The nodes of `owners`, the public among them, as if nobody else had any."""
    children: defaultdict[RadixNode, list[RadixNode]] = defaultdict(list)
    for owner in owners:
        for node in tree.owned_by(owner):
            assert node.parent is not None
            children[node.parent].append(node)
    roots = [root for _, root in sorted(tree.roots()) if root in children]
    runs = (run for root in roots for run in _runs(tree, root, children, max_depth))
    views: list[NodeView] = []
    ids: dict[RadixNode, int] = {}  # of each run, by its last node
    for parent, run in islice(runs, max_nodes):
        node = run[-1]
        ids[node] = len(views) + 1
        num_live_blocks, num_readers = (0, 0) if node.is_public else pool.num_readers(node.block_ids)
        views.append(
            NodeView(
                id=ids[node],
                parent_id=0 if parent.is_root else ids[parent],
                public=node.is_public,
                tenant=node.owner.tenant,
                tokens=b"".join(member.edge for member in run),
                num_blocks=sum(len(member.block_ids) for member in run),
                num_live_blocks=num_live_blocks,
                num_readers=num_readers,
            )
        )
    return TreeView(views, sum(1 for _ in runs))


def _runs(
    tree: RadixTree, root: RadixNode, children: dict[RadixNode, list[RadixNode]], max_depth: int
) -> Iterator[tuple[RadixNode, list[RadixNode]]]:
    """What is seen as one node, with the node above it, level by level; `children` are those seen.

    Siblings come in the order of their scopes and tokens, for the tree's own tells when they came.
    """
    parents, depth = [root], 0
    while parents and (depth < max_depth or not max_depth):
        ends = []
        for parent in parents:
            for node in sorted(children.get(parent, ()), key=attrgetter("scope", "edge")):
                run = [node, *_public_continuation(tree, node, children)]
                yield parent, run
                ends.append(run[-1])
        parents, depth = ends, depth + 1


def _public_continuation(
    tree: RadixTree, node: RadixNode, children: dict[RadixNode, list[RadixNode]]
) -> Iterator[RadixNode]:
    """The public nodes behind a public one for as long as nothing that is seen divides them from it."""
    while node.is_public and len(behind := children.get(node, [])) == 1:
        node = behind[0]
        if not node.is_public or node.is_tail(tree.block_size):
            return
        yield node
