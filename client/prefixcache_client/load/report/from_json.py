"""From plain JSON values to dataclasses, checked field by field."""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

_INT_LIMIT = 1 << 256
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")


class JsonError(ValueError):
    """A value is not of the kind that its place asks for."""


def from_json(kind: type[T], value: Any, name: str) -> T:
    """The value as `kind`: a dataclass of plain values, unions, dictionaries, tuples and other dataclasses.

    Passes over what the value has beyond the fields. Raises JsonError, which calls the value `name`. O(size).
    """
    made: T = _made(kind, value, name)
    return made


def _made(kind: Any, value: Any, name: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise JsonError(f"{name} is no object")
        missing = [field.name for field in fields(kind) if field.name not in value]
        if missing:
            raise JsonError(f"{name} lacks {', '.join(missing)}")
        hints = _hints(kind)  # type: ignore[arg-type]  # a class, not an instance
        made = {field: _made(hint, value[field], f"{name}.{field}") for field, hint in hints.items()}
        return kind(**made)  # type: ignore[operator]  # the same
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list):
        return tuple([_made(inner[0], item, f"{name}[{i}]") for i, item in enumerate(value)])
    if origin is dict and isinstance(value, dict):
        return {
            _made(str, key, f"a name in {name}"): _made(inner[1], item, f"{name}.{key}")
            for key, item in value.items()
        }
    if origin is UnionType:
        if value is None and NoneType in inner:
            return None
        if isinstance(value, bool) and int in inner:  # a setting that is a truth value
            return value
        for option in inner:
            if option is not NoneType and (is_dataclass(option) or _is_plain(option, value)):
                return _made(option, value, name)
    elif _is_plain(kind, value):
        return float(value) if kind is float else value
    raise JsonError(f"{name} is {value!r:.60}")


def _is_plain(kind: Any, value: Any) -> bool:
    """JSON writes 1.0 as it likes, and to Python true is a number.

    Numbers that no program of ours writes, and that arithmetic breaks on, are none; nor is text that cannot
    be written again.
    """
    match value:
        case bool():
            return kind is bool
        case float():
            return kind is float and math.isfinite(value)
        case int():
            return kind in (int, float) and abs(value) < _INT_LIMIT
        case str():
            return kind is str and not _HALF_PAIR.search(value)
    return False


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
