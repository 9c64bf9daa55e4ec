"""A plan as the kernels read it: one buffer of small integers, one upload per step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from prefixcache_worker.attention.plan import CHUNK_ROWS, SEGMENT_ROWS, AttentionPlan

TASK_FIELDS = (
    "first_block",
    "first_position",
    "num_rows",
    "first_token",
    "first_partial",
    "first_query",
    "num_queries",
)
"""Columns of the task table, in the order in which the kernel loads them."""

NO_SLOT = -1
"""Where a token that only fills up a batch is written: nowhere."""

_ALIGNMENT = 4
"""Every table starts at a multiple of so many int32, 16 bytes: Triton compiles anew for other pointers."""


class TableSize(NamedTuple):
    """How much a step needs, or a table has room for."""

    num_tokens: int
    num_tasks: int
    num_block_ids: int
    num_partials: int

    def holds(self, other: TableSize) -> bool:
        """Whether nothing of `other` is more."""
        return all(mine >= theirs for mine, theirs in zip(self, other, strict=True))


class PlanTable(NamedTuple):
    """All reads and writes of one step, on the host. A task is one tile of queries and one run of rows.

    Partial results are numbered task by task, and within a task's run token by token.
    """

    tasks: np.ndarray  # [num_tasks, len(TASK_FIELDS)], the longest first
    block_ids: np.ndarray  # [num_block_ids], the items' block runs one after the other
    positions: np.ndarray  # [num_tokens], absolute
    slots: np.ndarray  # [num_tokens], where each token's own row is written
    first_partials: np.ndarray  # [num_tokens + 1], into the next two
    partial_ids: np.ndarray  # [num_partials], each token's partial results, in position order
    segments: np.ndarray  # [num_partials], the segment of its sequence that each of them is of

    @property
    def size(self) -> TableSize:
        return TableSize(len(self.positions), len(self.tasks), len(self.block_ids), len(self.partial_ids))


def tabulate(plan: AttentionPlan, *, group_size: int, tile_queries: int) -> PlanTable:
    """Cut a plan's items into tasks of one partial result and at most `tile_queries` query rows.

    Cost: O(items) in Python, the rest in numpy.
    """
    items = plan.items
    columns = [
        (
            len(item.block_ids),
            item.first_position,
            item.num_rows,
            item.first_token,
            item.num_tokens,
            item.level,
            item.num_levels,
        )
        for item in items
    ]
    num_blocks, item_position, item_rows, first_token, num_tokens, level, num_levels = np.array(columns).T

    # A run for each partial result: an item, or one chunk of it.
    item, chunk = _counted(num_levels)
    skipped_rows = chunk * CHUNK_ROWS
    first_position = item_position[item] + skipped_rows
    whole_or_chunk = np.where(num_levels[item] == 1, item_rows[item], CHUNK_ROWS)
    num_rows = np.minimum(item_rows[item] - skipped_rows, whole_or_chunk)
    skipped_blocks = first_position // plan.block_size - item_position[item] // plan.block_size
    first_block = _starts(num_blocks)[item] + skipped_blocks
    first_token, num_tokens, level = first_token[item], num_tokens[item], level[item] + chunk
    first_partial, num_queries = _starts(num_tokens), num_tokens * group_size

    longest_first = np.argsort(-num_rows, kind="stable")
    run, tile = _counted(-(-num_queries[longest_first] // tile_queries))
    run = longest_first[run]  # the tiles of a run stay together: its rows are in cache
    fields = {
        "first_block": first_block[run],
        "first_position": first_position[run],
        "num_rows": num_rows[run],
        "first_token": first_token[run],
        "first_partial": first_partial[run],
        "first_query": tile * tile_queries,
        "num_queries": num_queries[run],
    }
    run, token = _counted(num_tokens)
    token += first_token[run]
    by_token = np.lexsort((level[run], token))
    return PlanTable(
        tasks=np.stack([fields[name] for name in TASK_FIELDS], axis=1),
        block_ids=np.concatenate([item.block_ids for item in items]),
        positions=np.asarray(plan.positions),
        slots=np.asarray(plan.slot_mapping()),
        first_partials=np.append(0, np.cumsum(np.bincount(token, minlength=plan.num_tokens))),
        partial_ids=by_token,
        segments=first_position[run][by_token] // SEGMENT_ROWS,
    )


class StepTable:
    """A plan's table on the device, in buffers that stay where they are whatever is loaded into them."""

    def __init__(self, capacity: TableSize, block_size: int, device: torch.device) -> None:
        self.capacity = capacity
        self.block_size = block_size
        num_tokens, num_tasks, num_block_ids, num_partials = capacity
        lengths = np.array(
            [
                1,
                num_tasks * len(TASK_FIELDS),
                num_block_ids,
                num_tokens,
                num_tokens,
                num_tokens + 1,
                num_partials,
                num_partials,
            ]
        )
        padded = -(-lengths // _ALIGNMENT) * _ALIGNMENT
        starts = _starts(padded).tolist()
        self._sections = [slice(start, start + n) for start, n in zip(starts, lengths.tolist(), strict=True)]
        size = int(padded.sum())
        self._staging = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._buffer = torch.empty(size, dtype=torch.int32, device=device)
        (
            self.num_tasks,  # [1]
            tasks,
            self.block_ids,  # [num_block_ids]
            self.positions,  # [num_tokens]
            self.slots,  # [num_tokens]
            self.first_partials,  # [num_tokens + 1]
            self.partial_ids,  # [num_partials]
            self.segments,  # [num_partials]
        ) = (self._buffer[section] for section in self._sections)
        self.tasks = tasks.view(-1, len(TASK_FIELDS))  # [num_tasks, len(TASK_FIELDS)]

    def load(self, table: PlanTable) -> None:
        """Make this the table of a step. Tokens, tasks and partial results that it lacks count as none.

        Requires that it fits. The copy is queued, not awaited; the step that reads it must have ended before
        the next is loaded.
        """
        assert self.capacity.holds(table.size), f"{table.size} does not fit {self.capacity}"
        staging = self._staging.numpy()
        num_tasks, tasks, block_ids, positions, slots, first_partials, partial_ids, segments = (
            staging[section] for section in self._sections
        )
        num_tasks[0] = len(table.tasks)
        tasks[: table.tasks.size] = table.tasks.ravel()
        block_ids[: table.block_ids.size] = table.block_ids
        _fill(positions, table.positions, 0)
        _fill(slots, table.slots, NO_SLOT)
        _fill(first_partials, table.first_partials, table.first_partials[-1])
        partial_ids[: table.partial_ids.size] = table.partial_ids
        segments[: table.segments.size] = table.segments
        self._buffer.copy_(self._staging, non_blocking=True)


def _fill(target: np.ndarray, values: np.ndarray, rest: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = rest


def _counted(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each index as often as its count says, and beside it which repetition it is: 0, 1, ..."""
    indices = np.repeat(np.arange(len(counts)), counts)
    return indices, np.arange(len(indices)) - _starts(counts)[indices]


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Where each of several runs starts when they lie one after the other."""
    starts: np.ndarray = np.cumsum(lengths) - lengths
    return starts
