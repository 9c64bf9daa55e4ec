"""What torch's profiler has recorded: its trace, read as calls that lie in each other."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

_MICROSECOND = 1e-6
_ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "long int": 8,
    "int": 4,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
"""By the names that a trace has for the types of elements."""


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """An operation, a range, or a kernel on a GPU, with what it called. Times are seconds."""

    name: str
    begin: float
    seconds: float
    shapes: Sequence[Any] = ()
    """Of each argument: a list of sizes, or a list of such lists; [] for what is no tensor."""
    types: Sequence[str] = ()
    values: Sequence[str] = ()
    """Of each argument that is no tensor, as text."""
    callees: list[Call] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.begin + self.seconds

    @property
    def own_seconds(self) -> float:
        """Without what it called."""
        return self.seconds - sum(callee.seconds for callee in self.callees)

    def walk(self) -> Iterator[Call]:
        """Itself and all below it."""
        yield self
        for callee in self.callees:
            yield from callee.walk()

    def num_elements(self, argument: int) -> int:
        """Elements of a tensor, or of a list of them."""
        shape = self.shapes[argument] if argument < len(self.shapes) else []
        if shape and isinstance(shape[0], list):
            return sum(math.prod(each) for each in shape)
        return math.prod(shape) if shape else 0

    def item_bytes(self, argument: int) -> int:
        """Bytes of one of its elements; 4 where the trace does not say, as of lists."""
        return _ITEM_BYTES.get(self.types[argument], 4) if argument < len(self.types) else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened on the CPU, the outermost calls of each thread, and on a GPU."""

    calls: Sequence[Call]
    kernels: Sequence[Call]

    def walk(self) -> Iterator[Call]:
        """All calls on the CPU."""
        return chain.from_iterable(call.walk() for call in self.calls)


def read_trace(path: Path) -> Trace:
    """The trace that `torch.profiler.profile.export_chrome_trace` has written, compressed."""
    with gzip.open(path) as file:
        return trace_of(json.load(file)["traceEvents"])


def trace_of(events: Iterable[dict[str, Any]]) -> Trace:
    """The calls of Chrome trace events."""
    calls_of_thread: dict[Any, list[Call]] = {}
    kernels: list[Call] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        arguments = event.get("args", {})
        call = Call(
            name=event["name"],
            begin=event["ts"] * _MICROSECOND,
            seconds=event.get("dur", 0) * _MICROSECOND,
            shapes=arguments.get("Input Dims", ()),
            types=arguments.get("Input type", ()),
            values=arguments.get("Concrete Inputs", ()),
        )
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.append(call)
        elif event.get("cat") in ("cpu_op", "user_annotation"):
            calls_of_thread.setdefault(event.get("tid"), []).append(call)
    calls = chain.from_iterable(map(_nested, calls_of_thread.values()))
    return Trace(calls=list(calls), kernels=kernels)


def _nested(calls: list[Call]) -> list[Call]:
    """One thread's outermost calls, with the others put into them."""
    outermost: list[Call] = []
    open_calls: list[Call] = []
    for call in sorted(calls, key=lambda call: (call.begin, -call.seconds)):
        while open_calls and open_calls[-1].end <= call.begin:
            open_calls.pop()
        (open_calls[-1].callees if open_calls else outermost).append(call)
        open_calls.append(call)
    return outermost
