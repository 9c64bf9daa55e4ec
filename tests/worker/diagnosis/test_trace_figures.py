"""A profile counts what is copied and filled, and for how long what is ours runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from prefixcache_worker.diagnosis.trace import read_trace, trace_of
from prefixcache_worker.diagnosis.trace_figures import MAX_OPERATIONS, TraceFigures, figures_of
from prefixcache_worker.profiler_range import ATTENTION, PRODUCT, STEP, profiler_range


def profiled(work: Callable[[], object], folder: Path) -> TraceFigures:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    path = folder / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    return figures_of(read_trace(path))


TABLE = torch.arange(60.0).view(10, 6)
HALF = TABLE.bfloat16()
ROWS = torch.tensor([1, 4, 4])


@pytest.mark.parametrize(
    ("work", "num_bytes"),
    [
        (lambda: torch.cat([TABLE, TABLE[:2]]), 4 * 72),
        (lambda: TABLE[ROWS], 4 * 18),
        (lambda: HALF[ROWS], 2 * 18),
        (lambda: TABLE.index_select(0, ROWS), 4 * 18),
        (lambda: TABLE.index_select(1, ROWS), 4 * 30),
        (lambda: TABLE.gather(1, torch.zeros(10, 2, dtype=torch.int64)), 4 * 20 + 8 * 20),
        (lambda: TABLE.clone(), 4 * 60),
        (lambda: TABLE.T.contiguous(), 4 * 60),
        (lambda: TABLE.bfloat16(), 2 * 60),
        (lambda: TABLE.clone().index_copy_(0, ROWS[:2], TABLE[:2]), 4 * 60 + 4 * 12),
        (lambda: TABLE.clone().copy_(HALF), 2 * 4 * 60),
        (lambda: TABLE.contiguous(), 0),
        (lambda: TABLE.float(), 0),
        (lambda: TABLE + 1, 0),
    ],
)
def test_every_copy_counts_with_what_it_writes(
    work: Callable[[], object], num_bytes: int, tmp_path: Path
) -> None:
    figures = profiled(work, tmp_path)
    assert figures.copied_bytes == num_bytes
    assert bool(figures.num_copies) == bool(num_bytes)


def test_fills_are_copies_of_a_kind_of_their_own(tmp_path: Path) -> None:
    figures = profiled(lambda: (torch.zeros(5, 7), torch.full((3,), 2.0), TABLE.clone()), tmp_path)
    assert figures.filled_bytes == 4 * 35 + 4 * 3
    assert figures.copied_bytes == figures.filled_bytes + 4 * 60
    assert figures.num_copies == 3


def test_what_torch_does_not_see_stands_in_ranges(tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(3):
            with profiler_range(STEP):
                with profiler_range(ATTENTION):
                    TABLE.sum()
                with profiler_range(PRODUCT):
                    TABLE.sum()

    figures = profiled(work, tmp_path)
    assert figures.seconds > figures.attention_seconds + figures.product_seconds > 0
    assert {each.name: each.count for each in figures.operations}[ATTENTION] == 3


def test_no_range_is_made_while_nobody_records() -> None:
    assert profiler_range(STEP) is profiler_range(ATTENTION)


def call(
    name: str, begin: float, end: float, *, thread: int = 1, kind: str = "cpu_op", **arguments: Any
) -> dict[str, Any]:
    """An event of a trace, in microseconds."""
    times = {"ts": begin, "dur": end - begin}
    return {"ph": "X", "cat": kind, "name": name, "tid": thread, "args": arguments, **times}


def test_times_are_told_without_those_of_what_is_called() -> None:
    events = [
        call("outer", 0, 100),
        call("inner", 10, 40),
        call("inner", 50, 60),
        call("outer", 0, 5, thread=2),
    ]
    times = {each.name: each.seconds for each in figures_of(trace_of(events)).operations}
    assert times == {"outer": pytest.approx(65e-6), "inner": pytest.approx(40e-6)}


def test_a_copy_within_a_copy_is_part_of_it() -> None:
    floats = {"Input Dims": [[4], [4]], "Input type": ["float", "float"]}
    events = [
        call("aten::index_put_", 0, 10),
        call("aten::copy_", 2, 5, **floats),
        call("aten::copy_", 20, 30, **floats),
    ]
    figures = figures_of(trace_of(events))
    assert (figures.num_copies, figures.copied_bytes) == (2, 16)
    assert figures.copy_seconds == pytest.approx(20e-6)


def test_times_on_a_gpu_are_those_of_its_kernels() -> None:
    events = [
        call(STEP, 0, 100, kind="user_annotation"),
        call(ATTENTION, 0, 50, kind="user_annotation"),
        call("paged_attention_kernel", 10, 30, kind="kernel"),
        call("merge_partials_kernel", 30, 33, kind="kernel"),
        call("nvjet_tst_64x8_64x16", 40, 60, kind="kernel"),
        call("Memcpy DtoH", 60, 61, kind="gpu_memcpy"),
    ]
    figures = figures_of(trace_of(events))
    assert figures.seconds == pytest.approx(100e-6)
    assert figures.attention_seconds == pytest.approx(23e-6)
    assert figures.product_seconds == pytest.approx(20e-6)
    assert figures.copy_seconds == pytest.approx(1e-6)


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_operations_are_the_longest_first(names: list[str]) -> None:
    events = [call(f"{name}{i}", 10 * i, 10 * i + 1 + i % 7) for i, name in enumerate(names)]
    operations = figures_of(trace_of(events)).operations
    assert len(operations) == min(len(names), MAX_OPERATIONS)
    assert [each.seconds for each in operations] == sorted(
        (each.seconds for each in operations), reverse=True
    )
