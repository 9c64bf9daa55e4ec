"""Pictures of the tree: sums, what is too narrow or too deep, and names that stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefixcache import NodeView, TreeView, pack_tokens
from prefixcache_worker.server.http.ui.icicle import MAX_ACROSS, MAX_DEPTH, Cell, Icicle, Measure

BLOCK_SIZE = 4


def node(node_id: int, parent_id: int, num_blocks: int, first: int = 0, **fields: object) -> NodeView:
    tokens = pack_tokens(range(first, first + num_blocks * BLOCK_SIZE))
    fields = {"public": False, "tenant": "acme"} | fields
    return NodeView(id=node_id, parent_id=parent_id, tokens=tokens, num_blocks=num_blocks, **fields)  # type: ignore[arg-type]


def icicle(*nodes: NodeView) -> Icicle:
    return Icicle(TreeView(list(nodes), 0), block_size=BLOCK_SIZE)


def test_a_cell_is_as_wide_as_all_that_hangs_on_it() -> None:
    picture = icicle(
        node(1, 0, 3, public=True, tenant=""), node(2, 1, 2, 50), node(3, 1, 5, 90, num_live_blocks=4)
    )
    root, left, right = picture.cells(None, Measure.BLOCKS)
    assert (root.parent, left.parent, right.parent) == (-1, 0, 0)
    assert (root.num_blocks, root.total_blocks, root.total_tokens) == (3, 10, 40)
    assert [left.total_blocks, right.total_blocks] == [2, 5]
    assert picture.total(Measure.BLOCKS) == 10
    assert [share._asdict() for share in picture.tenants()] == [
        {"tenant": "acme", "num_tokens": 28, "num_blocks": 7, "num_live_blocks": 4},
        {"tenant": "", "num_tokens": 12, "num_blocks": 3, "num_live_blocks": 0},
    ]


def test_what_is_too_narrow_is_merged_with_all_below_it() -> None:
    wide = node(1, 0, 2 * MAX_ACROSS)
    picture = icicle(wide, node(2, 0, 1, 7000), node(3, 0, 1, 8000), node(4, 2, 1, 9000))
    first, merged = picture.cells(None, Measure.BLOCKS)
    assert first.node is wide
    assert (merged.node, merged.num_nodes, merged.total_blocks) == (None, 3, 3)


def test_narrow_cells_are_merged_by_owner_while_an_owner_has_enough() -> None:
    wide = node(1, 0, MAX_ACROSS)
    small = [node(10 + i, 0, 1, 4000 + 8 * i, tenant=f"t{i % 2}", num_readers=i) for i in range(20)]
    picture = icicle(wide, *small, node(90, 0, 1, 9000, tenant="alone"))
    _, evens, odds, others = picture.cells(None, Measure.BLOCKS)
    assert [(cell.tenant, cell.num_nodes, cell.num_readers) for cell in (evens, odds, others)] == [
        ("t0", 10, 18),
        ("t1", 10, 19),
        ("", 1, 0),
    ]


def test_rows_below_the_last_are_counted_and_shown_from_nearer() -> None:
    chain = [node(depth, depth - 1, 1, 10 * depth) for depth in range(1, MAX_DEPTH + 4)]
    picture = icicle(*chain)
    cells = picture.cells(None, Measure.TOKENS)
    assert len(cells) == MAX_DEPTH
    assert [cell.num_below for cell in cells[-2:]] == [0, 3]
    nearer = picture.cells(cells[3].key, Measure.TOKENS)
    assert [cell.node for cell in nearer] == chain[3:]
    assert [seen for _, seen in picture.lineage(cells[3].key)] == chain[:4]


def test_the_whole_tree_has_no_lineage_and_only_its_own_nodes_are_in_it() -> None:
    picture = icicle(node(1, 0, 1))
    assert picture.lineage(None) == []
    assert picture.cells(None, Measure.TOKENS)[0].key in picture
    assert "gone" not in picture
    assert None not in picture


def test_a_name_stays_when_ids_change_and_the_node_grows_or_is_cut() -> None:
    def key_of(*nodes: NodeView) -> str:
        return icicle(*nodes).cells(None, Measure.TOKENS)[-1].key

    name = key_of(node(1, 0, 2), node(2, 1, 3, 40))
    assert key_of(node(8, 0, 2), node(9, 8, 4, 40)) == name
    assert key_of(node(8, 0, 2), node(9, 8, 1, 40)) == name
    assert key_of(node(8, 0, 2), node(9, 8, 3, 41)) != name
    assert key_of(node(8, 0, 2), node(9, 8, 3, 40, tenant="other")) != name


def test_equal_tokens_of_two_salts_have_names_of_their_own() -> None:
    first, second = icicle(node(1, 0, 1), node(2, 0, 1)).cells(None, Measure.TOKENS)
    assert first.key != second.key


@st.composite
def trees(draw: st.DrawFn) -> Icicle:
    parents = [draw(st.integers(0, index)) for index in range(draw(st.integers(1, 60)))]
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    order = sorted(range(1, len(depths)), key=depths.__getitem__)
    sizes = st.sampled_from((1, 2, 40, 3000))
    return icicle(*(node(index, parents[index - 1], draw(sizes), 7 * index) for index in order))


@given(trees(), st.sampled_from(Measure))
def test_nothing_is_lost_between_narrow_cells_and_deep_rows(picture: Icicle, measure: Measure) -> None:
    def width(cell: Cell) -> int:
        return cell.total_tokens if measure is Measure.TOKENS else cell.total_blocks

    cells = picture.cells(None, measure)
    assert sum(width(cell) for cell in cells if cell.parent < 0) == picture.total(measure)
    assert sum(cell.num_nodes + cell.num_below for cell in cells) == len(picture.nodes)
    for index, cell in enumerate(cells):
        assert cell.parent < index
        below = sum(width(other) for other in cells if other.parent == index)
        own = cell.num_tokens if measure is Measure.TOKENS else cell.num_blocks
        assert cell.node is None or cell.num_below or own + below == width(cell)
    assert len(cells) <= 3 * MAX_ACROSS * MAX_DEPTH
    assert len({cell.key for cell in cells}) == len(cells)
