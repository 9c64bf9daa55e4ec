"""What counts as the text of a JSON object."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.http.json_body import MAX_DEPTH, MAX_KEYS, parse_json

SCALARS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


@given(st.dictionaries(st.text(), VALUES), st.booleans())
def test_an_object_comes_out_as_it_went_in(value: dict[str, object], escapes: bool):
    value = json.loads(json.dumps(value).replace("Infinity", "1"))
    assert parse_json(json.dumps(value, ensure_ascii=escapes).encode()) == value


@given(st.binary(max_size=64) | st.text(alphabet='{}[]",:\\ud8e01 ', max_size=64).map(str.encode))
def test_any_bytes_are_an_object_or_refused(body: bytes):
    try:
        value = parse_json(body)
    except InvalidRequestError:
        return
    json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "is not valid JSON: Expecting value"),
        (b"[1]", "is not a JSON object"),
        (b'"text"', "is not a JSON object"),
        (b'{"a": 1} {}', "is not valid JSON: Extra data"),
        (b'{"a": "\xff"}', "is not valid JSON: byte 7 is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "is not valid JSON: byte 0 is not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "is not valid JSON"),
        (b'{"a": NaN}', "is not valid JSON: NaN is no JSON number"),
        (b'{"a": -Infinity}', "is not valid JSON: -Infinity is no JSON number"),
        (b'{"a": 1, "b": 2, "a": 1}', "the key 'a' stands twice in one object"),
        (b'{"x": [{"\\u0061": 1, "a": 2}]}', "the key 'a' stands twice in one object"),
        (b'{"a": "\\ud800"}', "has half of a surrogate pair"),
        (b'{"a": [{"\\udc00\\ud800": 1}]}', "has half of a surrogate pair"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
        (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", f"has more than {MAX_DEPTH} objects"),
        (b'{"a": ' + b"[" * 100_000, "it is nested too deeply"),
        (b'{"a": "\x00"}', "is not valid JSON: Invalid control character"),
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(body: bytes, sentence: str):
    with pytest.raises(InvalidRequestError) as caught:
        parse_json(body)
    assert sentence in str(caught.value)


def test_the_deepest_object_that_is_taken():
    depth = MAX_DEPTH - 1
    assert parse_json(b'{"a": ' + b"[" * depth + b"]" * depth + b"}")


def test_a_whole_surrogate_pair_is_a_character():
    assert parse_json(b'{"a": "\\ud83d\\udd25"}') == {"a": "\U0001f525"}


def test_an_object_has_so_many_keys_at_most():
    keys = {str(number): 0 for number in range(MAX_KEYS)}
    assert parse_json(json.dumps({"metadata": keys}).encode()) == {"metadata": keys}
    with pytest.raises(InvalidRequestError, match="an object has 4097 keys; at most 4096 are taken"):
        parse_json(json.dumps([keys | {"one more": 0}]).encode())
