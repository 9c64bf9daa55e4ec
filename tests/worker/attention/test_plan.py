"""The planner: every row once, in order, in whole chunks, and shared runs read once for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spans import steps, windows

from prefixcache_worker.attention.plan import CHUNK_ROWS, SEGMENT_ROWS, SequenceSpan
from prefixcache_worker.attention.planner import MIN_SAVED_ROWS, AttentionPlanner, plan_attention
from prefixcache_worker.model.model import AttentionWindow


def spans_over(tables, block_size, *, num_tokens=1):
    """Decoding sequences whose last block is their own."""
    return [SequenceSpan(table, (len(table) - 1) * block_size, num_tokens) for table in tables]


def shared_items(plan):
    return [item for item in plan.items if item.num_sequences > 1]


@given(steps(), windows())
def test_every_token_reads_its_rows_once_and_in_order(step, window):
    spans, block_size = step
    for share in (True, False):
        plan_attention(spans, block_size, window=window, share=share).check()


@given(steps(), windows())
def test_sharing_never_reads_more_and_unshared_reads_every_length(step, window):
    spans, block_size = step
    shared, unshared = (
        plan_attention(spans, block_size, window=window, share=share) for share in (True, False)
    )
    assert shared.num_rows_read <= unshared.num_rows_read == unshared.num_rows_unshared
    assert shared.num_rows_unshared == unshared.num_rows_unshared
    if window is None:
        assert shared.num_rows_unshared == sum(span.length for span in spans)


def test_one_prefix_is_one_item_per_segment_for_all():
    prefix = list(range(64))
    plan = plan_attention(spans_over([[*prefix, 100 + i] for i in range(16)], 16), 16)
    assert [
        (item.num_rows, item.num_sequences, item.num_tokens, item.level) for item in shared_items(plan)
    ] == [(SEGMENT_ROWS, 16, 16, level) for level in range(1024 // SEGMENT_ROWS)]
    assert plan.num_rows_read == 1024 + 16
    assert plan.num_rows_unshared == 16 * 1025


def test_two_levels_and_two_groups_read_unique_rows_only():
    base, left, right = list(range(32)), list(range(32, 48)), list(range(48, 64))
    tables = [[*base, *(left if i % 2 else right), 100 + i] for i in range(16)]
    plan = plan_attention(spans_over(tables, 16), 16)
    plan.check()
    assert plan.num_rows_read == (32 + 16 + 16) * 16 + 16
    assert sorted(item.num_sequences for item in shared_items(plan)) == [8, 8, 16]


def test_unrelated_sequences_share_nothing():
    plan = plan_attention(spans_over([[i, 10 + i] for i in range(5)], 16), 16)
    assert plan.num_levels == 1
    assert all(item.num_sequences == 1 for item in plan.items)


def test_a_shared_run_ends_where_a_chunk_does():
    """What lies behind the last whole chunk is read by each: a chunk is computed in one piece, or its sums
    would depend on who shares it."""
    tables = [[*range(70), 100 + i] for i in range(4)]
    plan = plan_attention(spans_over(tables, 1), 1)
    plan.check()
    assert [item.num_rows for item in shared_items(plan)] == [CHUNK_ROWS]
    assert plan.num_rows_read == CHUNK_ROWS + 4 * (70 - CHUNK_ROWS + 1)


def test_a_run_that_spares_too_little_is_read_by_each():
    window = AttentionWindow(MIN_SAVED_ROWS // 2 + 1)
    spans = [SequenceSpan([*range(4), 10 + i], 64, 1) for i in range(3)]
    two = plan_attention(spans[:2], 16, window=window)
    assert two.num_rows_read == two.num_rows_unshared == 2 * window.size
    assert plan_attention(spans, 16, window=window).num_rows_read == window.size - 1 + 3


def test_a_block_that_is_still_written_is_not_shared():
    """Equal tables whose sequences are short of the block's end must each read their own rows."""
    spans = [SequenceSpan([*range(6)], 5 * 16 + 8, 1), SequenceSpan([*range(6)], 5 * 16 + 9, 1)]
    plan = plan_attention(spans, 16)
    plan.check()
    assert shared_items(plan)
    assert all(block_id < 5 for item in shared_items(plan) for block_id in item.block_ids)


def test_slot_mapping_follows_a_table_that_does_not_ascend():
    """B35: a position's slot comes from the table, wherever its block lies."""
    plan = plan_attention([SequenceSpan([7, 2, 9, 4], 30, 20)], 16)
    assert plan.slot_mapping() == [[7, 2, 9, 4][p // 16] * 16 + p % 16 for p in range(30, 50)]
    assert plan.positions == list(range(30, 50))


@pytest.mark.parametrize("start", [0, 5, SEGMENT_ROWS - 1, SEGMENT_ROWS, 3 * SEGMENT_ROWS + 7])
@pytest.mark.parametrize("num_tokens", [1, 100])
def test_no_item_crosses_a_segment(start, num_tokens):
    """Boundaries depend on positions only: the same rows are summed together, shared or not."""
    plan = plan_attention([SequenceSpan(list(range(200)), start, num_tokens)], 16)
    plan.check()
    ends = [item.end_position for item in plan.items]
    assert [end % SEGMENT_ROWS for end in ends[:-1]] == [0] * (len(ends) - 1)
    assert ends[-1] == start + num_tokens


def test_a_run_that_goes_on_inside_a_segment_leaves_a_result_for_each_chunk():
    """A shared run of 3 chunks, then 2 chunks and a bit: folded one by one, as if one run had been read."""
    tables = [[*range(12), *range(100 + 10 * i, 109 + 10 * i)] for i in range(2)]
    plan = plan_attention(spans_over(tables, 16), 16)
    plan.check()
    assert CHUNK_ROWS == 64
    assert [(item.first_position, item.level, item.num_levels) for item in plan.items] == [
        (0, 0, 1),
        (192, 1, 3),
        (192, 1, 3),
    ]
    assert plan.num_levels == 4


class TestWindows:
    def test_rows_out_of_sight_are_not_read(self):
        plan = plan_attention([SequenceSpan(list(range(64)), 1000, 1)], 16, window=AttentionWindow(100))
        plan.check()
        assert [(item.first_position, item.num_rows, item.masked) for item in plan.items] == [
            (901, 100, False)
        ]
        assert plan.items[0].block_ids == tuple(range(901 // 16, 1000 // 16 + 1))

    def test_sinks_are_read_besides(self):
        plan = plan_attention([SequenceSpan(list(range(64)), 1000, 1)], 16, window=AttentionWindow(100, 4))
        plan.check()
        assert [(item.first_position, item.num_rows) for item in plan.items] == [(0, 4), (901, 100)]
        assert plan.num_rows_read == plan.num_rows_unshared == 104

    def test_a_window_that_ends_inside_a_shared_run_shares_what_is_seen(self):
        """Sequences at 1001, 1002 and 1003 see the run from 702, 703 and 704 on."""
        spans = [SequenceSpan([*range(60), *range(100 + 9 * i, 109 + 9 * i)], 1001 + i, 1) for i in range(3)]
        plan = plan_attention(spans, 16, window=AttentionWindow(300))
        plan.check()
        shared = shared_items(plan)
        assert (shared[0].first_position, shared[-1].end_position) == (702, 960)
        assert [item.masked for item in shared] == [True]
        assert plan.num_rows_read == (960 - 702) + sum(1002 + i - 960 for i in range(3))

    def test_b30_each_window_has_its_own_plan(self):
        """Layers without a window lose nothing because others have one."""
        windows = (AttentionWindow(32), None)
        span = SequenceSpan(list(range(9)), 128, 1)
        near, far = AttentionPlanner(16, windows).plan([span])
        assert (near.window, near.num_rows_read) == (windows[0], 32)
        assert (far.window, far.num_rows_read) == (None, 129)


@st.composite
def histories(draw):
    """(block size, steps of one engine): sequences decode on, join, leave, and swap blocks for others."""
    spans, block_size = draw(steps())
    ids = iter(range(10_000, 20_000))
    running = [[list(span.block_table), span.start, span.num_tokens] for span in spans]
    history = [spans]
    for _ in range(draw(st.integers(1, 6))):
        for sequence in running:
            table, start, num_tokens = sequence
            sequence[1:] = [start + num_tokens, 1]
            while len(table) * block_size <= sequence[1]:
                table.append(next(ids))
        change = draw(st.sampled_from(["none", "none", "none", "join", "leave", "adopt"]))
        if change == "join":
            parent = draw(st.sampled_from(running))
            table = parent[0][: draw(st.integers(0, parent[1] // block_size))]
            running.append([[*table, next(ids)], len(table) * block_size, 1])
        elif change == "leave" and len(running) > 1:
            running.pop(draw(st.integers(0, len(running) - 1)))
        elif change == "adopt":
            ours, theirs = draw(st.sampled_from(running)), draw(st.sampled_from(running))
            num_full = min(ours[1], theirs[1]) // block_size
            ours[0][:num_full] = theirs[0][:num_full]
        # An engine's tables are lists that change in place.
        history.append([SequenceSpan(table, start, n) for table, start, n in running])
        history[-1] = [span._replace(block_table=list(span.block_table)) for span in history[-1]]
    return block_size, history


@given(histories(), windows())
def test_a_plan_never_depends_on_the_steps_before(history, window):
    block_size, planned = history
    planner = AttentionPlanner(block_size, (None, window))
    for spans in planned:
        plans = planner.plan(spans)
        assert plans == AttentionPlanner(block_size, (None, window)).plan(spans)
        for plan in plans:
            plan.check()


def test_tables_that_grow_apart_from_each_other_keep_the_plan():
    """What costs the time, finding out who shares what, is done once for a set that decodes on."""
    tables = [[*range(256), *range(1000 * i, 1000 * i + 40)] for i in range(1, 33)]
    planner = AttentionPlanner(16)
    planner.plan([SequenceSpan(table, 256 * 16 + 20 + i, 1) for i, table in enumerate(tables)])
    sharing = planner._sharing
    for step in range(1, 100):
        spans = [SequenceSpan(table, 256 * 16 + 20 + i + step, 1) for i, table in enumerate(tables)]
        assert planner.plan(spans) == AttentionPlanner(16).plan(spans)
    assert planner._sharing is sharing


def test_a_plan_prints_as_a_table():
    text = plan_attention(spans_over([[*range(8), 100 + i] for i in range(2)], 16), 16).describe()
    assert text.splitlines() == [
        "2 sequences, 2 tokens, 130 rows read (258 unshared)",
        "level            rows      tokens sequences blocks",
        "    0          0..127        0..1         2      8",
        "    1        128..128        0..0         1      1",
        "    1        128..128        1..1         1      1",
    ]
