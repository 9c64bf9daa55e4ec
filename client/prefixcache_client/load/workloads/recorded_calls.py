"""The calls of a recorded session of text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prefixcache.replay import TraceError
from prefixcache.replay.trace_fields import OnBroken, fields_of_lines, leaving_out

_MICROSECONDS = 1e-6


class Call(NamedTuple):
    """One call of a model."""

    seconds: float
    """When it was recorded."""
    input: str
    output: str
    growth: str | None
    """What the input has behind that of the call before; None: it does not begin with that."""


def session_files(path: Path) -> list[Path]:
    """The files of a folder, or the file itself. Raises TraceError when there are none."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path} holds no .jsonl file; give a folder of recorded sessions, or one file")
    return files


def read_calls(path: Path, *, on_broken: OnBroken | None = None) -> list[Call]:
    """The calls of one session, in the order of their times, without those that repeat the one before.

    One JSON object a line with `timestamp` (microseconds), `input` and `output`. An empty input asks
    nothing, and is left out. Broken lines go to `on_broken`; without it, raises TraceError. Or OSError.
    """
    return list(_without_repetitions(sorted(_recorded(path, on_broken))))


def _recorded(path: Path, on_broken: OnBroken | None) -> Iterator[tuple[float, str, str]]:
    for fields in fields_of_lines(path, on_broken):
        with leaving_out(on_broken):
            seconds = fields.count("timestamp") * _MICROSECONDS
            yield seconds, fields.text("input"), fields.text("output")


def _without_repetitions(calls: list[tuple[float, str, str]]) -> Iterator[Call]:
    before = ""
    for seconds, asked, answer in calls:
        if asked and asked != before:
            growth = asked[len(before) :] if before and asked.startswith(before) else None
            yield Call(seconds, asked, answer, growth)
            before = asked
