"""Kept prefixes as bytes: what a snapshot has beside the cache."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable

from prefixcache import PackedTokens, SnapshotDamagedError
from prefixcache_worker.engine.prefix_book import PrefixRecord


def encode_prefixes(records: Iterable[PrefixRecord]) -> bytes:
    """One JSON list, equal for equal records. O(tokens)."""
    rows = [record._asdict() | {"tokens": b64encode(record.tokens).decode()} for record in records]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_prefixes(data: bytes) -> list[PrefixRecord]:
    """The records that `encode_prefixes` made these bytes of. Raises SnapshotDamagedError. O(tokens)."""
    try:
        return [
            PrefixRecord(**row | {"tokens": PackedTokens(b64decode(row["tokens"], validate=True))})
            for row in json.loads(data)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotDamagedError("prefixes", expected="a list of them", found=repr(error)) from error
