"""Files of JSON that were damaged, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prefixcache_client.baseline.recording import read_recording
from prefixcache_client.doctor.report import load_report
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.report.json_file import read_measurement
from prefixcache_client.read_json import read_json

BROKEN = (b"", b"[" * 100_000, b'{"a": ' * 100_000, b"\xff\xfe", b"9" * 5_000, b"{", b"null", b"[]", b"7")


@pytest.mark.parametrize("content", BROKEN, ids=lambda content: repr(content[:8]))
@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_measurement(str(path)),
        lambda path: load_report(str(path)),
        read_recording,
    ],
    ids=["measurement", "report", "recording"],
)
def test_a_damaged_file_is_one_sentence(
    tmp_path: Path, read: Callable[[Path], object], content: bytes
) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(content)

    with pytest.raises(PrefixCacheClientError, match=r"damaged\.json"):
        read(path)


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_what_is_nested_too_deep_is_no_json(opening: str) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        read_json(opening * 100_000)


def test_a_value_is_read_from_text_and_from_bytes() -> None:
    assert read_json('{"a": [1, 2.5, null]}') == read_json(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
