"""The index as sections: nothing is lost, and nothing else is taken for one."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_indexes import indexes

from prefixcache import pack_tokens
from prefixcache.errors import SnapshotDamagedError
from prefixcache.snapshot_index import SnapshotIndex, SnapshotNode, decode_index, encode_index

Change = Callable[[dict[str, Any]], object]


def node(parent: int | None, token_ids: list[int], scope: bytes = b"", **changes: Any) -> SnapshotNode:
    """A node over blocks of two tokens."""
    fields: dict[str, Any] = {
        "parent": parent,
        "domain": b"model",
        "scope": scope,
        "tenant": scope.decode(),
        "edge": pack_tokens(token_ids),
        "num_blocks": (len(token_ids) + 1) // 2,
        "last_used": 5,
        "age_rank": 0,
    }
    return SnapshotNode(**{**fields, **changes})


def index_of(*nodes: SnapshotNode) -> SnapshotIndex:
    ranked = [replace(node, age_rank=rank) for rank, node in enumerate(nodes)]
    return SnapshotIndex(block_size=2, clock=9, nodes=ranked)


# A public prompt of two blocks; behind it a public tail, and a tenant's block with a tail of its own.
TREE = index_of(
    node(None, [1, 2, 3, 4], payers=("b", "a")),
    node(0, [5]),
    node(0, [5, 6], b"tenant", policy={"turn": 1}),
    node(2, [7], b"tenant", policy={"rank": 0.5}),
)


def changed(position: int, **changes: Any) -> SnapshotIndex:
    nodes = list(TREE.nodes)
    nodes[position] = replace(nodes[position], **changes)
    return replace(TREE, nodes=nodes)


@given(indexes())
def test_encode_decode_encode_is_identical(index: SnapshotIndex) -> None:
    sections = encode_index(index)
    decoded = decode_index(sections)
    assert decoded == index
    assert encode_index(decoded) == sections
    assert decoded.num_blocks == sum(node.num_blocks for node in index.nodes)


def test_an_empty_index() -> None:
    empty = index_of()
    assert empty.num_blocks == 0
    assert decode_index(encode_index(empty)) == empty


def test_the_sections_are_these_bytes() -> None:
    """So that a change of the format is not made by accident."""
    tenant = b"tenant".hex()
    assert encode_index(TREE) == {
        "index": (
            '{"block_size":2,"clock":9,"domains":["6d6f64656c"],'
            f'"owners":[["",""],["{tenant}","tenant"]],"tenants":["a","b"],"policy":["rank","turn"],'
            '"nodes":[[null,0,0,16,2,5,0,[1,0],[null,null]],[0,0,0,4,1,5,1,[],[null,null]],'
            "[0,0,1,8,1,5,2,[],[null,1]],[2,0,1,4,1,5,3,[],[0.5,null]]]}"
        ).encode(),
        "edges": pack_tokens([1, 2, 3, 4, 5, 5, 6, 7]),
    }


def test_equal_indexes_give_equal_sections_whatever_order_their_fields_came_in() -> None:
    one = changed(0, policy={"a": 1, "b": 2})
    other = changed(0, policy={"b": 2, "a": 1})
    assert encode_index(one) == encode_index(other)


FLAWS = [
    (changed(0, edge=b"", num_blocks=0), "node 0 with an edge of 0 bytes"),
    (changed(0, edge=b"12345"), "node 0 with an edge of 5 bytes"),
    (changed(0, num_blocks=1), "node 0 with 1 blocks for an edge of 16 bytes"),
    (changed(1, num_blocks=0), "node 1 with 0 blocks for an edge of 4 bytes"),
    (changed(0, last_used=10), "node 0 used at 10, when the time is 9"),
    (changed(0, last_used=-1), "node 0 used at -1"),
    (changed(1, parent=1), "node 1 before its parent 1"),
    (changed(1, parent=3), "node 1 before its parent 3"),
    (changed(1, parent=-1), "node 1 before its parent -1"),
    (changed(3, parent=1, scope=b""), "node 3 behind node 1, whose last block is not full"),
    (index_of(node(None, [1, 2, 3]), node(0, [4])), "node 1 behind node 0, whose last block is not full"),
    (changed(3, domain=b"other"), "node 3 in another domain than its parent 2"),
    (changed(3, scope=b"another"), "node 3 in another scope than its private parent 2"),
    (changed(3, scope=b""), "node 3 in another scope than its private parent 2"),
    (changed(3, age_rank=2), "age ranks that are not 0 to 3, each once"),
    (changed(3, age_rank=4), "age ranks that are not 0 to 3, each once"),
    (changed(3, parent=None), "node 3 before node 2"),
    (index_of(node(None, [2, 2]), node(None, [1, 2])), "node 1 before node 0"),
    (index_of(node(None, [1, 2]), node(None, [1, 2, 3])), "node 1 before node 0"),
    (index_of(node(None, [1, 2], b"b"), node(None, [1, 2], b"a")), "node 1 before node 0"),
    (index_of(node(None, [1, 2]), node(None, [1, 2], domain=b"a")), "node 1 before node 0"),
    (index_of(node(None, [1]), node(None, [1, 2])), "node 0, which begins node 1 and so is superfluous"),
    (replace(index_of(), block_size=0), "a block size of 0"),
]


@pytest.mark.parametrize(("index", "flaw"), FLAWS, ids=[flaw for _, flaw in FLAWS])
def test_what_is_no_tree_in_order_is_neither_saved_nor_loaded(
    index: SnapshotIndex, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match=flaw):
        encode_index(index)
    with monkeypatch.context() as unchecked:
        unchecked.setattr("prefixcache.snapshot_index._first_flaw", lambda index: None)
        sections = encode_index(index)
    with pytest.raises(SnapshotDamagedError, match=flaw) as error:
        decode_index(sections)
    assert error.value.section == "index"


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("clock"),
        lambda content: content.update(clock=None),
        lambda content: content.update(nodes=None),
        lambda content: content.update(more=1),
        lambda content: content["domains"].append("00"),
        lambda content: content["domains"].insert(0, "no hex"),
        lambda content: content["owners"].reverse(),
        lambda content: content["tenants"].append("a"),
        lambda content: content["policy"].reverse(),
        lambda content: content["nodes"].pop(),
        lambda content: content["nodes"][0].pop(),
        lambda content: content["nodes"][1].__setitem__(1, 1),
        lambda content: content["nodes"][1].__setitem__(2, -2),
        lambda content: content["nodes"][1].__setitem__(3, 8),
        lambda content: content["nodes"][3].__setitem__(3, 8),
        lambda content: content["nodes"][1].__setitem__(7, [2]),
        lambda content: content["nodes"][1].__setitem__(8, [None]),
    ],
)
def test_sections_that_are_not_what_encode_makes_are_refused(change: Change) -> None:
    sections = encode_index(TREE)
    content = json.loads(sections["index"])
    assert encode_index(decode_index(sections)) == sections
    change(content)
    index = json.dumps(content, separators=(",", ":")).encode()
    with pytest.raises(SnapshotDamagedError, match=r"damaged in its (index|edges)"):
        decode_index({**sections, "index": index})


@pytest.mark.parametrize("data", [b"", b"[", b"[]", b"{}", b"\xff", b"7"])
def test_what_is_no_index_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotDamagedError, match="damaged in its index: expected an index"):
        decode_index({**encode_index(TREE), "index": data})


@given(indexes(max_nodes=5), st.data())
def test_edges_that_are_cut_or_longer_are_refused(index: SnapshotIndex, data: st.DataObject) -> None:
    sections = encode_index(index)
    edges = sections["edges"]
    other = data.draw(
        st.just(edges + b"\0\0\0\0") | st.builds(lambda n: edges[:n], st.integers(0, len(edges)))
    )
    if other != edges:
        with pytest.raises(SnapshotDamagedError):
            decode_index({**sections, "edges": other})
