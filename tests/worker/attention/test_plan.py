"""The planner: every row once, in order, and shared runs read once for all."""

from hypothesis import given
from support.spans import steps

from prefixcache_worker.attention.plan import MIN_SAVED_ROWS, SPLIT_ROWS, SequenceSpan, plan_attention


def spans_over(tables, block_size, *, num_tokens=1):
    """Decoding sequences whose last block is their own."""
    return [SequenceSpan(table, (len(table) - 1) * block_size, num_tokens) for table in tables]


@given(steps())
def test_every_token_reads_its_rows_once_and_in_order(step):
    spans, block_size = step
    for share in (True, False):
        plan_attention(spans, block_size, share=share).check()


@given(steps())
def test_sharing_never_reads_more_and_unshared_reads_every_length(step):
    spans, block_size = step
    shared, unshared = plan_attention(spans, block_size), plan_attention(spans, block_size, share=False)
    assert shared.num_rows_read <= unshared.num_rows_read == unshared.num_rows_unshared
    assert shared.num_rows_unshared == sum(span.length for span in spans)


def test_one_prefix_is_one_item_for_all():
    prefix = list(range(64))
    plan = plan_attention(spans_over([[*prefix, 100 + i] for i in range(16)], 16), 16)
    shared = [item for item in plan.items if item.num_sequences > 1]
    assert [(item.num_rows, item.num_sequences, item.num_tokens, item.level) for item in shared] == [
        (SPLIT_ROWS, 16, 16, level) for level in range(1024 // SPLIT_ROWS)
    ]
    assert plan.num_rows_read == 1024 + 16
    assert plan.num_rows_unshared == 16 * 1025


def test_two_levels_and_two_groups_read_unique_rows_only():
    base, left, right = list(range(32)), list(range(32, 48)), list(range(48, 64))
    tables = [[*base, *(left if i % 2 else right), 100 + i] for i in range(16)]
    plan = plan_attention(spans_over(tables, 16), 16)
    plan.check()
    assert plan.num_rows_read == (32 + 16 + 16) * 16 + 16
    assert sorted(item.num_sequences for item in plan.items if item.num_sequences > 1) == [8, 8, 16]


def test_unrelated_sequences_share_nothing():
    plan = plan_attention(spans_over([[i, 10 + i] for i in range(5)], 16), 16)
    assert plan.num_levels == 1
    assert all(item.num_sequences == 1 for item in plan.items)


def test_a_run_too_short_to_pay_is_folded_into_its_readers():
    block_size = 16
    num_blocks = MIN_SAVED_ROWS // block_size // 2
    tables = [[*range(num_blocks), 100 + i] for i in range(2)]
    folded = plan_attention(spans_over(tables, block_size), block_size)
    assert folded.num_rows_read == folded.num_rows_unshared
    tables = [[*range(num_blocks), 100 + i] for i in range(3)]
    assert plan_attention(spans_over(tables, block_size), block_size).num_rows_read == num_blocks * 16 + 3


def test_a_block_that_is_still_written_is_not_shared():
    """Equal tables whose sequences are short of the block's end must each read their own rows."""
    spans = [SequenceSpan([0, 1, 2], 40, 1), SequenceSpan([0, 1, 2], 41, 1)]
    plan = plan_attention(spans, 16)
    plan.check()
    assert all(block_id != 2 for item in plan.items if item.num_sequences > 1 for block_id in item.block_ids)


def test_slot_mapping_follows_a_table_that_does_not_ascend():
    plan = plan_attention([SequenceSpan([7, 2, 9, 4], 30, 20)], 16)
    assert plan.slot_mapping() == [[7, 2, 9, 4][p // 16] * 16 + p % 16 for p in range(30, 50)]


def test_no_item_but_a_causal_one_crosses_a_split():
    """Boundaries depend on positions only: the same rows are summed together, shared or not."""
    for start in (0, 5, SPLIT_ROWS - 1, SPLIT_ROWS, 3 * SPLIT_ROWS + 7):
        span = SequenceSpan(list(range(200)), start, 1)
        plan = plan_attention([span], 16)
        plan.check()
        ends = [sum(item.num_rows for item in plan.items[: i + 1]) for i in range(len(plan.items))]
        assert [end % SPLIT_ROWS for end in ends[:-1]] == [0] * (len(ends) - 1)
        assert ends[-1] == start + 1
