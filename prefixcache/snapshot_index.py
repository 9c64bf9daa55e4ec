"""What the cache has indexed, as plain data that does not depend on block ids."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any, TypeVar

from prefixcache.errors import SnapshotDamagedError
from prefixcache.namespace import PUBLIC_SCOPE
from prefixcache.token_chunks import TOKEN_BYTES

INDEX_SECTIONS = ("index", "edges")
"""Names of the sections that hold an index: one JSON object, and the edges one after the other."""

_Item = TypeVar("_Item", bytes, str, tuple[bytes, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotNode:
    """A node of the tree."""

    parent: int | None
    """Its position in `SnapshotIndex.nodes`, from 0; None for the first node of a prompt."""
    domain: bytes
    scope: bytes
    """Empty for a public node."""
    tenant: str
    """The owner of a private node."""
    edge: bytes
    """Packed tokens of the run."""
    num_blocks: int
    """One for each chunk of the edge, and one for what is behind the last whole one."""
    last_used: int
    age_rank: int
    """Place among all nodes by age, the oldest first, from 0."""
    payers: tuple[str, ...] = ()
    """Tenants, in the cache's order."""
    policy: Mapping[str, int | float] = field(default_factory=dict)
    """What else the cache wants to remember of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotIndex:
    """All nodes at one moment. Equal caches give equal indexes, whatever their block ids.

    Nodes stand breadth first from the roots, siblings by domain, scope and first chunk. Blocks are
    numbered from 0 through all nodes in this order.
    """

    block_size: int
    clock: int
    """Logical time: no node was used later."""
    nodes: Sequence[SnapshotNode]

    @property
    def num_blocks(self) -> int:
        """Blocks of all nodes. O(nodes)."""
        return sum(node.num_blocks for node in self.nodes)


def cut_index(index: SnapshotIndex, lost_numbers: Container[int]) -> tuple[SnapshotIndex, list[int]]:
    """The index without the blocks of these numbers and all that are behind them, and the numbers of those
    that it still has. O(bytes + nodes log nodes)."""
    chunk_bytes = index.block_size * TOKEN_BYTES
    nodes: list[SnapshotNode] = []
    block_numbers: list[int] = []
    new_positions: dict[int | None, int | None] = {None: None}  # of nodes that may have children still
    first_number = 0
    for position, node in enumerate(index.nodes):
        numbers = range(first_number, first_number + node.num_blocks)
        first_number = numbers.stop
        if node.parent not in new_positions:
            continue
        kept = list(takewhile(lambda number: number not in lost_numbers, numbers))
        if not kept:
            continue
        if len(kept) == node.num_blocks:
            new_positions[position] = len(nodes)
        parent, edge = new_positions[node.parent], node.edge[: len(kept) * chunk_bytes]
        nodes.append(replace(node, parent=parent, edge=edge, num_blocks=len(kept)))
        block_numbers += kept
    ranks = {age_rank: rank for rank, age_rank in enumerate(sorted(node.age_rank for node in nodes))}
    nodes = [replace(node, age_rank=ranks[node.age_rank]) for node in nodes]
    return replace(index, nodes=nodes), block_numbers


def encode_index(index: SnapshotIndex) -> dict[str, bytes]:
    """The sections of an index, equal for equal ones. O(bytes).

    Requires: the nodes stand in order and make a tree, as `SnapshotIndex` and `RadixNode` say.
    """
    flaw = _first_flaw(index)
    assert flaw is None, flaw
    nodes = index.nodes
    domains = _numbered(node.domain for node in nodes)
    owners = _numbered((node.scope, node.tenant) for node in nodes)
    tenants = _numbered(tenant for node in nodes for tenant in node.payers)
    policy = _numbered(name for node in nodes for name in node.policy)
    content = {
        "block_size": index.block_size,
        "clock": index.clock,
        "domains": [domain.hex() for domain in domains],
        "owners": [[scope.hex(), tenant] for scope, tenant in owners],
        "tenants": list(tenants),
        "policy": list(policy),
        "nodes": [
            [
                node.parent,
                domains[node.domain],
                owners[node.scope, node.tenant],
                len(node.edge),
                node.num_blocks,
                node.last_used,
                node.age_rank,
                [tenants[tenant] for tenant in node.payers],
                [node.policy.get(name) for name in policy],
            ]
            for node in nodes
        ],
    }
    return {
        "index": json.dumps(content, separators=(",", ":")).encode(),
        "edges": b"".join(node.edge for node in nodes),
    }


def decode_index(sections: Mapping[str, bytes]) -> SnapshotIndex:
    """The index that `encode_index` made these sections of.

    Raises SnapshotDamagedError for sections that it cannot have made. O(bytes).
    """
    try:
        index = _decode(json.loads(sections["index"]), sections["edges"])
        flaw = _first_flaw(index)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise SnapshotDamagedError("index", expected="an index", found=repr(error)) from error
    if flaw is not None:
        raise SnapshotDamagedError("index", expected="a tree in order", found=flaw)
    again = encode_index(index)
    for name in INDEX_SECTIONS:
        if again[name] != sections[name]:
            raise SnapshotDamagedError(
                name, expected=f"{len(again[name])} bytes that mean the same", found=f"{len(sections[name])}"
            )
    return index


def _decode(content: Any, edges: bytes) -> SnapshotIndex:
    domains = [bytes.fromhex(domain) for domain in content["domains"]]
    owners = [(bytes.fromhex(scope), tenant) for scope, tenant in content["owners"]]
    tenants, names = content["tenants"], content["policy"]
    nodes = []
    offset = 0
    for record in content["nodes"]:
        parent, domain, owner, edge_bytes, num_blocks, last_used, age_rank, payers, policy = record
        scope, tenant = owners[owner]
        nodes.append(
            SnapshotNode(
                parent=parent,
                domain=domains[domain],
                scope=scope,
                tenant=tenant,
                edge=edges[offset : offset + edge_bytes],
                num_blocks=num_blocks,
                last_used=last_used,
                age_rank=age_rank,
                payers=tuple(tenants[payer] for payer in payers),
                policy={name: value for name, value in zip(names, policy, strict=True) if value is not None},
            )
        )
        offset += edge_bytes
    return SnapshotIndex(block_size=content["block_size"], clock=content["clock"], nodes=nodes)


def _numbered(items: Iterable[_Item]) -> dict[_Item, int]:
    """Each item once, in order, and its place."""
    return {item: place for place, item in enumerate(sorted(set(items)))}


def _first_flaw(index: SnapshotIndex) -> str | None:
    """What keeps the nodes from being a tree in order, if anything does. O(bytes)."""
    nodes, num_nodes = index.nodes, len(index.nodes)
    if index.block_size < 1:
        return f"a block size of {index.block_size}"
    for position, node in enumerate(nodes):
        flaw = _flaw_of(position, node, index)
        if flaw is not None:
            return f"node {position} {flaw}"
    if {node.age_rank for node in nodes} != set(range(num_nodes)):
        return f"age ranks that are not 0 to {num_nodes - 1}, each once"
    chunk_bytes = index.block_size * TOKEN_BYTES
    places = (_place(node, chunk_bytes) for node in nodes)
    for position, ((*siblings, chunk), (*next_siblings, next_chunk)) in enumerate(pairwise(places)):
        if (siblings, chunk) >= (next_siblings, next_chunk):
            return f"node {position + 1} before node {position}"
        if siblings == next_siblings and next_chunk.startswith(chunk):
            return f"node {position}, which begins node {position + 1} and so is superfluous"
    return None


def _flaw_of(position: int, node: SnapshotNode, index: SnapshotIndex) -> str | None:
    """What is wrong with one node or its place under its parent, if anything is."""
    chunk_bytes = index.block_size * TOKEN_BYTES
    if not node.edge or len(node.edge) % TOKEN_BYTES:
        return f"with an edge of {len(node.edge)} bytes"
    if node.num_blocks != -(-len(node.edge) // chunk_bytes):
        return f"with {node.num_blocks} blocks for an edge of {len(node.edge)} bytes"
    if not 0 <= node.last_used <= index.clock:
        return f"used at {node.last_used}, when the time is {index.clock}"
    if node.parent is None:
        return None
    if not 0 <= node.parent < position:
        return f"before its parent {node.parent}"
    parent = index.nodes[node.parent]
    if len(parent.edge) % chunk_bytes:
        return f"behind node {node.parent}, whose last block is not full"
    if node.domain != parent.domain:
        return f"in another domain than its parent {node.parent}"
    if parent.scope not in (PUBLIC_SCOPE, node.scope):
        return f"in another scope than its private parent {node.parent}"
    return None


def _place(node: SnapshotNode, chunk_bytes: int) -> tuple[int, bytes, bytes, bytes]:
    """Where a node stands in the order."""
    parent = -1 if node.parent is None else node.parent
    return (parent, node.domain, node.scope, node.edge[:chunk_bytes])
