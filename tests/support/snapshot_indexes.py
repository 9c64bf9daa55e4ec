"""Indexes as caches might have them, for the snapshot tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from prefixcache import pack_tokens
from prefixcache.snapshot_index import SnapshotIndex, SnapshotNode

TENANTS = {b"": "", b"scope of a": "a", b"scope of b": "b", b"another of a": "a"}
_NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)


@dataclass
class _Node:
    """A node before it has its position."""

    domain: bytes
    scope: bytes
    token_ids: list[int]
    children: list[_Node] = field(default_factory=list)


@st.composite
def indexes(draw: st.DrawFn, *, max_nodes: int = 12) -> SnapshotIndex:
    """Trees of several domains and scopes, nodes in order."""
    block_size = draw(st.sampled_from([1, 2, 4]))
    super_root = _Node(b"", b"", [])
    nodes: list[_Node] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parents = [node for node in nodes if len(node.token_ids) % block_size == 0]
        parent = draw(st.sampled_from([super_root, *parents]))
        domain = draw(st.sampled_from([b"", b"model", b"other"])) if parent is super_root else parent.domain
        scope = parent.scope or draw(st.sampled_from(sorted(TENANTS)))
        token_ids = draw(st.lists(st.integers(0, 2) | st.just(2**32 - 1), min_size=1, max_size=9))
        node = _Node(domain, scope, token_ids)
        if not any(_collide(node, sibling, block_size) for sibling in parent.children):
            parent.children.append(node)
            nodes.append(node)
    clock = draw(st.integers(0, 100))
    ranks = draw(st.permutations(range(len(nodes))))
    return SnapshotIndex(
        block_size=block_size,
        clock=clock,
        nodes=[
            SnapshotNode(
                parent=parent,
                domain=node.domain,
                scope=node.scope,
                tenant=TENANTS[node.scope],
                edge=pack_tokens(node.token_ids),
                num_blocks=-(-len(node.token_ids) // block_size),
                last_used=draw(st.integers(0, clock)),
                age_rank=rank,
                payers=tuple(draw(st.lists(st.sampled_from(["a", "b", "\ud800"]), max_size=3))),
                policy=draw(st.dictionaries(st.sampled_from(["turn", "rank", "priority"]), _NUMBERS)),
            )
            for rank, (parent, node) in zip(ranks, _breadth_first(super_root, block_size), strict=True)
        ],
    )


def _collide(one: _Node, other: _Node, block_size: int) -> bool:
    """Whether one of two siblings makes the other superfluous."""
    num_tokens = min(block_size, len(one.token_ids), len(other.token_ids))
    owners = (one.domain, one.scope), (other.domain, other.scope)
    return owners[0] == owners[1] and one.token_ids[:num_tokens] == other.token_ids[:num_tokens]


def _breadth_first(super_root: _Node, block_size: int) -> list[tuple[int | None, _Node]]:
    ordered: list[tuple[int | None, _Node]] = []
    queue: list[tuple[int | None, _Node]] = [(None, super_root)]
    for position, node in queue:
        siblings = sorted(
            node.children, key=lambda n: (n.domain, n.scope, pack_tokens(n.token_ids[:block_size]))
        )
        for child in siblings:
            queue.append((len(ordered), child))
            ordered.append((position, child))
    return ordered
