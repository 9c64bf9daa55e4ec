"""The JSON objects of a trace, read with checks that name the place of what is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefixcache.errors import PrefixCacheError

ID_LIMIT = 1 << 64
_NUMBER_LIMIT = 1 << 63
"""Of times and counts: a number beyond is damage, and would not fit into a float."""


_HALF_PAIR = re.compile(r"[\ud800-\udfff]")


class TraceError(PrefixCacheError, ValueError):
    """A trace cannot be read. The message names the file, the place in it, and what is wrong there."""


OnBroken = Callable[[TraceError], None]
"""Is told of what a lenient reading leaves out."""


@contextmanager
def leaving_out(on_broken: OnBroken | None) -> Iterator[None]:
    """A block that ends early when what it reads is broken: `on_broken` is told, or else the error raised."""
    try:
        yield
    except TraceError as error:
        if on_broken is None:
            raise
        on_broken(error)


class TraceFields:
    """The fields of one JSON object, and where it stands. Every method raises TraceError."""

    def __init__(self, values: object, place: str) -> None:
        self._place = place
        if not isinstance(values, dict):
            raise self.error(f"a JSON object is expected, not {_shown(values)}")
        self._values: dict[str, Any] = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def error(self, message: str) -> TraceError:
        """The error that says so of this object."""
        return TraceError(f"{self._place}: {message}")

    def seconds(self, name: str) -> float:
        """A time of at least 0."""
        value = self._value(name)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise self.error(f"{name!r} is {_shown(value)}; a time of at least 0 is expected")
        self._require_below_limit(name, value)
        return float(value)

    def count(self, name: str, *, minimum: int = 0, default: int | None = None) -> int:
        """Required when there is no default."""
        value = self._value(name, default)
        if type(value) is not int or value < minimum:
            raise self.error(f"{name!r} is {_shown(value)}; an integer of at least {minimum} is expected")
        self._require_below_limit(name, value)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Required when there is no default."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(f"{name!r} is {_shown(value)}; a text is expected")
        if _HALF_PAIR.search(value):
            raise self.error(f"{name!r} has half a surrogate pair, which cannot be sent as text")
        return value

    def ids(self, name: str, *, limit: int = ID_LIMIT) -> list[int]:
        """Integers from 0 to below `limit`. O(ids)."""
        value = self._value(name)
        if not isinstance(value, list):
            raise self.error(f"{name!r} is {_shown(value)}; a list of ids is expected")
        for an_id in value:
            if type(an_id) is not int or not 0 <= an_id < limit:
                raise self.error(f"{name!r} has {_shown(an_id)}; integers from 0 to {limit - 1} are expected")
        return value

    def objects(self, name: str, on_broken: OnBroken | None = None) -> Iterator[TraceFields]:
        """The objects in a list. Their places are numbered from 1. What is no object goes to `on_broken`."""
        value = self._value(name)
        if not isinstance(value, list):
            raise self.error(f"{name!r} is {_shown(value)}; a list of objects is expected")
        for number, item in enumerate(value, 1):
            with leaving_out(on_broken):
                yield TraceFields(item, f"{self._place}: {name} {number}")

    def _require_below_limit(self, name: str, value: float) -> None:
        if value >= _NUMBER_LIMIT:
            raise self.error(f"{name!r} is {_shown(value)}; a number below {_NUMBER_LIMIT} is expected")

    def _value(self, name: str, default: object = None) -> Any:
        value = self._values.get(name, default)
        if value is None:
            raise self.error(f"{name!r} is missing")
        return value


def fields_of_lines(path: Path, on_broken: OnBroken | None = None) -> Iterator[TraceFields]:
    """One object a line; blank lines are skipped. Lines that hold none go to `on_broken`.

    Raises TraceError without it, or OSError.
    """
    with path.open("rb") as file:
        for line_number, line in enumerate(file, 1):
            if not line.isspace():
                with leaving_out(on_broken):
                    yield TraceFields(
                        _parse(line.rstrip(b"\r\n"), path, line_number), f"{path}:{line_number}"
                    )


def fields_of_file(path: Path) -> TraceFields:
    """The one object that is the whole file. Raises TraceError, or OSError."""
    return TraceFields(_parse(path.read_bytes(), path, 1), str(path))


def first_fields(path: Path) -> TraceFields:
    """The object on the first line, or the whole file when its first line is none.

    Raises TraceError, or OSError.
    """
    try:
        first = next(fields_of_lines(path), None)
    except TraceError:
        return fields_of_file(path)
    if first is None:
        raise TraceError(f"{path} is empty; a trace has at least one request")
    return first


def _parse(text: bytes, path: Path, first_line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{path}:{first_line + error.lineno - 1}"
        raise TraceError(f"{place}: damaged JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, a number far too long, nested too deep
        raise TraceError(f"{path}:{first_line}: damaged JSON: {error}") from None


def _shown(value: object) -> str:
    """A value in a message: as JSON, and cut off when it is long."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
