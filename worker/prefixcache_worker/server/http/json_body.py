"""From the bytes of a request's body to a JSON object that is only what it says."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from prefixcache_worker.errors import InvalidRequestError

MAX_DEPTH = 64
"""Objects and arrays within each other; a JSON Schema of a tool has about a dozen."""

MAX_KEYS = 4096
"""In one object. More would be wrong anyhow, and what is said of each wrong one takes a kilobyte."""


def parse_json(body: bytes) -> dict[str, Any]:
    """The object that `body` is the text of. O(bytes).

    Stricter than `json.loads`, whose leniency would let two readers of one body differ: UTF-8 alone, no key
    twice in an object, no NaN or Infinity, no half of a surrogate pair, at most MAX_DEPTH levels and
    MAX_KEYS keys in an object.
    Raises InvalidRequestError.
    """
    try:
        text = body.decode()
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("body", f"is not valid JSON: {_reason(error)}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("body", "is not a JSON object")
    _check(value, may_have_surrogates="\\u" in text)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:100]!a} stands twice in one object")
    if len(result) > MAX_KEYS:
        raise ValueError(f"an object has {len(result)} keys; at most {MAX_KEYS} are taken")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check(value: Any, *, may_have_surrogates: bool) -> None:
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH and any(isinstance(item, dict | list) for item in level):
            raise InvalidRequestError("body", f"has more than {MAX_DEPTH} objects and arrays in each other")
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper += item.values()
                if may_have_surrogates:
                    deeper += item
            elif isinstance(item, list):
                deeper += item
            elif may_have_surrogates and isinstance(item, str) and not _is_text(item):
                raise InvalidRequestError("body", "has half of a surrogate pair, which is no character")
        level = deeper


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)
