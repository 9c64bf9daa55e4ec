"""Tokens as bytes: packed once, then compared and hashed without a loop over tokens.

A chunk is `block_size` consecutive tokens, the unit of the tree. Packing is little-endian u32,
so the same tokens are the same bytes on every machine, whatever they came in.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import NewType, Protocol

from prefixcache.errors import InvalidArgumentError

TOKEN_BYTES = 4
_TOKEN_LIMIT = 1 << 32

PackedTokens = NewType("PackedTokens", bytes)
"""Token ids as little-endian u32, one after the other."""

ChunkHash = Callable[[bytes], int]
"""Hash of one chunk's bytes. It only finds candidates; the bytes are compared on every hit."""


class SupportsToList(Protocol):
    """An integer array of one dimension, such as numpy's."""

    def tolist(self) -> list[int]: ...


TokenIds = Sequence[int] | PackedTokens | SupportsToList
"""What every method takes for tokens: ids, an array of ids, or ids already packed."""


def pack_tokens(token_ids: TokenIds) -> PackedTokens:
    """Pack `token_ids`; bytes are taken as packed already. O(tokens), O(1) for bytes.

    Raises InvalidArgumentError for ids outside 0..2**32-1, for anything that is not an integer,
    and for bytes that are no whole number of tokens.
    """
    if isinstance(token_ids, (bytes, bytearray)):
        if len(token_ids) % TOKEN_BYTES:
            raise InvalidArgumentError(
                f"packed tokens have {len(token_ids)} bytes; give a multiple of {TOKEN_BYTES}"
            )
        return PackedTokens(bytes(token_ids))
    try:
        values = token_ids if isinstance(token_ids, (list, tuple)) else _to_list(token_ids)
        packed = array("I", values)
    except OverflowError:
        bad_id = next(token_id for token_id in values if not 0 <= token_id < _TOKEN_LIMIT)
        raise InvalidArgumentError(f"token id {bad_id} is outside 0..{_TOKEN_LIMIT - 1}") from None
    except TypeError as error:
        raise InvalidArgumentError(f"token ids must be integers in one dimension: {error}") from None
    return PackedTokens(_little_endian(packed).tobytes())


def unpack_tokens(packed: bytes | bytearray) -> list[int]:
    """The token ids behind `packed`. O(tokens)."""
    tokens = array("I")
    tokens.frombytes(packed)
    return _little_endian(tokens).tolist()


def num_declared_chunks(num_public_tokens: int, num_tokens: int, block_size: int) -> int:
    """Chunks wholly inside the tokens declared public. Raises InvalidArgumentError for too many."""
    if num_public_tokens == 0:
        return 0
    if not 0 <= num_public_tokens <= num_tokens:
        raise InvalidArgumentError(
            f"num_public_tokens is {num_public_tokens}; give 0 to {num_tokens}, the prompt's length"
        )
    return num_public_tokens // block_size


def num_readable_tokens(num_tokens: int, max_cached_tokens: int | None) -> int:
    """So many of a prompt's tokens may come from the cache: at least one is left to compute."""
    num_readable = max(num_tokens - 1, 0)
    return num_readable if max_cached_tokens is None else min(num_readable, max_cached_tokens)


def num_common_tokens(tokens: bytes, start: int, end: int, edge: bytes) -> int:
    """Length of the common prefix of `tokens[start:end]` (byte offsets) and `edge`.

    Gallops: compares O(common) bytes in O(log common) steps, wherever they diverge.
    """
    limit = min(len(edge), end - start) // TOKEN_BYTES
    if tokens.startswith(edge[: limit * TOKEN_BYTES], start):  # most calls match to the end
        return limit
    low, step = 0, 1
    while low + step < limit and _same(tokens, start, edge, low, low + step):
        low += step
        step *= 2
    high = min(low + step, limit)  # the first difference is among low .. high - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _same(tokens, start, edge, low, middle):
            low = middle
        else:
            high = middle
    return low


def _same(tokens: bytes, start: int, edge: bytes, first: int, last: int) -> bool:
    """Whether the tokens `first` .. `last - 1` of the edge are those behind `start`."""
    return tokens.startswith(edge[first * TOKEN_BYTES : last * TOKEN_BYTES], start + first * TOKEN_BYTES)


def _to_list(token_ids: Sequence[int] | SupportsToList) -> Sequence[int]:
    """Arrays as lists of plain ints: iterating over an array boxes every element twice."""
    return token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)


def _little_endian(tokens: array[int]) -> array[int]:
    assert tokens.itemsize == TOKEN_BYTES
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
