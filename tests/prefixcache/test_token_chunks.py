import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import InvalidArgumentError, pack_tokens, unpack_tokens
from prefixcache.token_chunks import TOKEN_BYTES, num_common_tokens

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(TOKENS)
def test_packing_is_little_endian_u32_and_can_be_undone(token_ids: list[int]) -> None:
    packed = pack_tokens(token_ids)
    assert packed == b"".join(token_id.to_bytes(4, "little") for token_id in token_ids)
    assert unpack_tokens(packed) == token_ids
    assert pack_tokens(packed) == packed


@pytest.mark.parametrize(
    "token_ids",
    [
        (1, 23, 70_000),
        np.array([1, 23, 70_000], dtype=np.int32),
        np.array([1, 23, 70_000], dtype=np.int64),
        np.array([1, 23, 70_000], dtype=np.uint32),
        np.array([1, 0, 23, 0, 70_000, 0], dtype=np.int64)[::2],
        array.array("q", [1, 23, 70_000]),
        [np.int64(1), np.int32(23), 70_000],
        bytearray(pack_tokens([1, 23, 70_000])),
    ],
)
def test_b40_the_same_tokens_are_the_same_bytes_whatever_they_came_in(token_ids: object) -> None:
    assert pack_tokens(token_ids) == pack_tokens([1, 23, 70_000])


def test_b40_other_tokens_are_other_bytes() -> None:
    assert pack_tokens([1, 23]) != pack_tokens([12, 3])


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([3, -1], r"token id -1 is outside 0\.\.4294967295"),
        ([2**32], r"token id 4294967296 is outside"),
        (np.array([1, -7]), r"token id -7 is outside"),
        ([1.5], r"must be integers"),
        (np.array([1.0, 2.0]), r"must be integers"),
        (np.array([[1, 2]]), r"in one dimension"),
        (["1"], r"must be integers"),
        (b"12345", r"5 bytes; give a multiple of 4"),
    ],
)
def test_what_is_no_token_id_is_named(token_ids: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        pack_tokens(token_ids)


@given(
    st.lists(st.integers(0, 2), max_size=6), TOKENS, st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2))
)
def test_common_tokens_are_counted_like_one_by_one(
    before: list[int], common: list[int], rest: list[int], edge_rest: list[int]
) -> None:
    tokens, edge = common + rest, common + edge_rest
    expected = 0
    while expected < min(len(tokens), len(edge)) and tokens[expected] == edge[expected]:
        expected += 1
    packed, start = pack_tokens(before + tokens), len(before) * TOKEN_BYTES
    assert num_common_tokens(packed, start, len(packed), pack_tokens(edge)) == expected
    assert num_common_tokens(packed, start, start, pack_tokens(edge)) == 0


def test_common_tokens_are_not_counted_by_common_bytes() -> None:
    """0x0102 and 0x0202 share their higher bytes, 0x0102 and 0x0103 none at the beginning."""
    tokens = pack_tokens([7, 0x0102])
    assert num_common_tokens(tokens, 0, 8, pack_tokens([7, 0x0202])) == 1
    assert num_common_tokens(tokens, 0, 8, pack_tokens([7, 0x0103])) == 1
