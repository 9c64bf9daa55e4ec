"""What a trace of engine steps comes to."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prefixcache_worker.diagnosis.trace import Call, Trace
from prefixcache_worker.profiler_range import ATTENTION, PRODUCT, STEP

MAX_OPERATIONS = 20

FILLS = frozenset({"aten::fill_", "aten::zero_", "aten::masked_fill_"})
COPIES = frozenset(
    {
        "aten::copy_",
        "aten::cat",
        "aten::index",
        "aten::index_select",
        "aten::gather",
        "aten::index_copy_",
        "aten::index_put_",
        "aten::scatter_",
    }
)
"""Operations that move memory and compute nothing. Those that only end in one of these, such as
`aten::clone`, count as what they call."""

_ATTENTION_KERNELS = ("paged_attention_kernel", "merge_partials_kernel")
_PRODUCT_KERNELS = ("gemm", "gemv", "cutlass", "cublas", "nvjet", "splitk")
_COPY_KERNELS = (
    "copy",
    "fill",
    "memcpy",
    "memset",
    "catarray",
    "gather",
    "scatter",
    "index",
    "write_rows_kernel",
)
"""Parts of the names of kernels on a GPU, in small letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """All calls of one operation."""

    name: str
    count: int
    seconds: float
    """Without what it called."""
    copied_bytes: int


class TraceFigures(NamedTuple):
    """Times in seconds. With a GPU those of attention, products and copies are its own."""

    seconds: float
    """Of the steps."""
    num_copies: int
    copied_bytes: int
    filled_bytes: int
    """Of `copied_bytes`."""
    attention_seconds: float
    product_seconds: float
    copy_seconds: float
    operations: tuple[Operation, ...]
    """Those that took longest, longest first."""


def figures_of(trace: Trace) -> TraceFigures:
    """Add up a trace. O(calls)."""
    calls = list(trace.walk())
    copies = list(outermost_copies(trace.calls))
    copied = [(copy, copied_bytes(copy)) for copy in copies]
    if trace.kernels:
        attention, product, copy = (
            _kernel_seconds(trace.kernels, names)
            for names in (_ATTENTION_KERNELS, _PRODUCT_KERNELS, _COPY_KERNELS)
        )
    else:
        attention, product = (_seconds_of(calls, name) for name in (ATTENTION, PRODUCT))
        copy = sum(call.seconds for call in copies)
    return TraceFigures(
        seconds=_seconds_of(calls, STEP),
        num_copies=len(copies),
        copied_bytes=sum(num_bytes for _, num_bytes in copied),
        filled_bytes=sum(num_bytes for call, num_bytes in copied if call.name in FILLS),
        attention_seconds=attention,
        product_seconds=product,
        copy_seconds=copy,
        operations=_operations(calls if not trace.kernels else trace.kernels, copied),
    )


def outermost_copies(calls: Iterable[Call]) -> Iterator[Call]:
    """Calls that copy or fill, without those that they make to do so."""
    for call in calls:
        if call.name in COPIES or call.name in FILLS:
            if list(call.shapes[:1]) != [[]]:  # else it is a single number
                yield call
        else:
            yield from outermost_copies(call.callees)


def copied_bytes(call: Call) -> int:
    """Bytes that a call of COPIES or FILLS writes, as far as its shapes tell."""
    match call.name:
        case "aten::cat":
            return call.num_elements(0) * call.item_bytes(0)
        case "aten::index_copy_":
            return call.num_elements(3) * call.item_bytes(0)
        case "aten::gather" | "aten::scatter_":
            return call.num_elements(2) * call.item_bytes(0)
        case "aten::index_select":
            dimension = int(call.values[1]) if len(call.values) > 1 and call.values[1] else 0
            size = call.shapes[0][dimension] if call.shapes[0] else 1
            return call.num_elements(0) // max(1, size) * call.num_elements(2) * call.item_bytes(0)
        case "aten::index" | "aten::index_put_":
            return _num_indexed(call) * call.item_bytes(0)
        case _:  # what it writes is its first argument
            return call.num_elements(0) * call.item_bytes(0)


def _num_indexed(call: Call) -> int:
    """Elements that an advanced index names: torch makes a view of that size before it copies."""
    for callee in call.walk():
        if callee.name == "aten::as_strided" and len(callee.values) > 1:
            return math.prod(ast.literal_eval(callee.values[1]))
    return 0


def _seconds_of(calls: Iterable[Call], name: str) -> float:
    return sum(call.seconds for call in calls if call.name == name)


def _kernel_seconds(kernels: Iterable[Call], names: tuple[str, ...]) -> float:
    return sum(call.seconds for call in kernels if any(name in call.name.lower() for name in names))


def _operations(calls: Iterable[Call], copied: list[tuple[Call, int]]) -> tuple[Operation, ...]:
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for call in calls:
        counts[call.name] += 1
        seconds[call.name] += call.own_seconds  # type: ignore[assignment]  # a Counter of floats
    for call, written in copied:
        num_bytes[call.name] += written
    longest = sorted(counts, key=lambda name: -seconds[name])[:MAX_OPERATIONS]
    return tuple(
        Operation(name=name, count=counts[name], seconds=seconds[name], copied_bytes=num_bytes[name])
        for name in longest
    )
