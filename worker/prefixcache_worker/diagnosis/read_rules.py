"""Whether a step reads what its sequences have: neither more, nor less, nor anything of others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prefixcache_worker.attention.plan import AttentionPlan, WorkItem
from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding
from prefixcache_worker.diagnosis.step_truth import Rows, SequenceTruth


def check_reads(
    plan: AttentionPlan,
    truths: Sequence[SequenceTruth],  # of those who read by it, in batch order
) -> Iterator[StepFinding]:
    """What is wrong with the rows that an attention was told to read. O(items * their sequences).

    A row counts for a sequence when an item has it for all tokens of the sequence, and one of them sees it.
    A row of an item that none of its sequences sees is one too many; it counts for the first of them.
    """
    first_tokens = list(accumulate((truth.num_tokens for truth in truths), initial=0))
    num_seen, num_useless = [0] * len(truths), [0] * len(truths)
    for item in plan.items:
        end_token = item.first_token + item.num_tokens
        begin = bisect_right(first_tokens, item.first_token) - 1
        end = min(bisect_left(first_tokens, end_token), len(truths))
        seen: list[Rows] = []
        for i in range(begin, end):
            is_whole = item.first_token <= first_tokens[i] and first_tokens[i + 1] <= end_token
            for rows in truths[i].visible_rows(plan.window):
                rows = rows.within(Rows(item.first_position, item.end_position))
                if not rows.num_rows:
                    continue
                seen.append(rows)
                if is_whole:
                    num_seen[i] += rows.num_rows
                stray = _first_stray(item, truths[i], rows, plan.block_size)
                if stray is not None:
                    yield StepFinding(
                        StepFault.FOREIGN_ROWS,
                        truths[i].request_id,
                        stray.expected,
                        stray.found,
                        f"{truths[i].request_id}: its row {stray.position} lies in slot {stray.expected}, "
                        f"and slot {stray.found} is read for it",
                    )
        num_useless[min(begin, len(truths) - 1)] += item.num_rows - _num_covered(seen)
    for truth, num_of_own, num_too_many in zip(truths, num_seen, num_useless, strict=True):
        yield from compare_reads(
            truth.request_id, truth.num_visible_rows(plan.window), num_of_own, num_too_many
        )


def compare_reads(
    request_id: str, num_expected: int, num_of_own: int, num_too_many: int = 0
) -> Iterator[StepFinding]:
    """What is wrong with so many rows that were read of a sequence's own, and so many others."""
    num_read = num_of_own + num_too_many
    if num_read > num_expected:
        sentence = f"{request_id} has {num_expected} rows to read, and {num_read} are read"
        yield StepFinding(StepFault.ROWS_READ_MORE, request_id, num_expected, num_read, sentence)
    if num_of_own < num_expected:
        sentence = f"{request_id} has {num_expected} rows to read, and only {num_of_own} of them are read"
        yield StepFinding(StepFault.ROWS_READ_LESS, request_id, num_expected, num_of_own, sentence)


class _Stray(NamedTuple):
    """A row that is read at a wrong place."""

    position: int
    expected: int
    """The slot where it lies; -1 where the sequence has no block for it."""
    found: int


def _first_stray(item: WorkItem, truth: SequenceTruth, rows: Rows, block_size: int) -> _Stray | None:
    """The first of these rows that the item does not read where the sequence has it. O(blocks)."""
    first_block = item.first_position // block_size
    blocks = slice(rows.begin // block_size, -(-rows.end // block_size))
    of_item = item.block_ids[blocks.start - first_block : blocks.stop - first_block]
    if item.first_row == item.first_position % block_size and of_item == truth.block_table[blocks]:
        return None
    for position in range(rows.begin, rows.end):
        block, row = divmod(item.first_row + position - item.first_position, block_size)
        found = item.block_ids[block] * block_size + row if block < len(item.block_ids) else -1
        expected = truth.slot(position, block_size)
        if found != expected:
            return _Stray(position, -1 if expected is None else expected, found)
    return None


def _num_covered(ranges: list[Rows]) -> int:
    """Rows that are in any of them."""
    num_rows, end = 0, 0
    for rows in sorted(ranges):
        num_rows += max(0, rows.end - max(rows.begin, end))
        end = max(end, rows.end)
    return num_rows
