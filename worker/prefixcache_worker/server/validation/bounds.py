"""How a bound is checked, and the bounds that all calls share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixcache_worker.errors import InvalidRequestError

MAX_REQUEST_ID_LENGTH = 256
MAX_SALT_BYTES = 64 * 1024


def require(holds: bool, field_name: str, description: str) -> None:
    """Raise InvalidRequestError, naming the field, unless `holds`."""
    if not holds:
        raise InvalidRequestError(field_name, description)


def given(message: Any, name: str, default: Any) -> Any:
    """An optional field's value, or the default when it is absent."""
    return getattr(message, name) if message.HasField(name) else default


def checked_number(
    value: float, field_name: str, low: float, high: float, *, above_low: bool = False
) -> float:
    """The value itself, within [low, high], or (low, high] with `above_low`."""
    bounds = f"({low:g}, {high:g}]" if above_low else f"{low:g} to {high:g}"
    # NaN fails every comparison, so it is refused too.
    require(
        low < value <= high or (value == low and not above_low), field_name, f"{value:g} is not in {bounds}"
    )
    return value


def checked_request_id(request_id: str) -> str:
    """The id itself, which may be empty."""
    require(
        len(request_id) <= MAX_REQUEST_ID_LENGTH,
        "request_id",
        f"has {len(request_id)} characters; at most {MAX_REQUEST_ID_LENGTH} are taken",
    )
    return request_id


def checked_salt(salt: str, field_name: str) -> str:
    """The salt itself, which may be empty."""
    num_bytes = len(salt.encode())
    require(
        num_bytes <= MAX_SALT_BYTES, field_name, f"has {num_bytes} bytes; at most {MAX_SALT_BYTES} are taken"
    )
    return salt


def known_ids(token_ids: Sequence[int], field_name: str, vocabulary_size: int) -> list[int]:
    """The ids themselves, all of them in the vocabulary."""
    if token_ids and max(token_ids) >= vocabulary_size:
        position = next(i for i, token_id in enumerate(token_ids) if token_id >= vocabulary_size)
        raise InvalidRequestError(
            f"{field_name}[{position}]",
            f"{token_ids[position]} is not a token id; they run from 0 to {vocabulary_size - 1}",
        )
    return list(token_ids)
