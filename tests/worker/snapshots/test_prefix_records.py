"""Kept prefixes as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import SnapshotDamagedError, pack_tokens
from prefixcache_worker.engine.prefix_book import PrefixRecord
from prefixcache_worker.snapshots.prefix_records import decode_prefixes, encode_prefixes

SECONDS = st.none() | st.floats(min_value=0, max_value=1e9, exclude_min=True)
RECORDS = st.builds(
    PrefixRecord,
    prefix_id=st.text(),
    tenant=st.text(),
    salt=st.text(),
    tokens=st.lists(st.integers(0, 2**32 - 1)).map(pack_tokens),
    is_public=st.booleans(),
    label=st.text(),
    ttl_seconds=SECONDS,
    seconds_left=SECONDS,
    num_uses=st.integers(0, 2**63),
)


@given(st.lists(RECORDS))
def test_records_come_back_as_they_were(records: list[PrefixRecord]):
    assert decode_prefixes(encode_prefixes(records)) == records


@pytest.mark.parametrize(
    "data", [b"", b"[", b"[1]", b"[{}]", b'[{"tokens": "*"}]', b'[{"tokens": ""}]', b"\xff", b"{}1"]
)
def test_other_bytes_are_damage(data: bytes):
    with pytest.raises(SnapshotDamagedError, match="damaged in its prefixes"):
        decode_prefixes(data)
