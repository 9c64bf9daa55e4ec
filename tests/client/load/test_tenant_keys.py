"""Whose key a request of a load shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.tenant_keys import TenantKeys, read_tenant_keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_each_line_is_a_tenant_and_its_key(file: Path) -> None:
    file.write_text("# of whom\n\n  shop\tkey-1 \nthe bank   key-2\n")
    keys = read_tenant_keys(str(file), api_key="key-0")

    assert keys == TenantKeys(api_key="key-0", by_tenant={"shop": "key-1", "the bank": "key-2"})
    assert keys.metadata("the bank") == (("authorization", "Bearer key-2"),)
    assert keys.metadata("another") == (("authorization", "Bearer key-0"), ("x-tenant-id", "another"))
    assert keys.metadata(None) == (("authorization", "Bearer key-0"),)
    assert TenantKeys().metadata(None) == ()


@pytest.mark.parametrize("line", ["secret", "sh\u00f6p secret", "shop secr\u00e9t", "x" * 129 + " secret"])
def test_a_line_that_is_none_is_named_and_its_key_is_not(file: Path, line: str) -> None:
    file.write_text(f"shop key-1\n{line}\n", encoding="utf-8")

    with pytest.raises(PrefixCacheClientError, match=r"keys, line 2: must be TENANT KEY: ") as error:
        read_tenant_keys(str(file), api_key=None)
    assert "secr" not in str(error.value)


def test_a_file_of_bytes(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")

    with pytest.raises(PrefixCacheClientError, match="is no UTF-8 text"):
        read_tenant_keys(str(file), api_key=None)


def test_a_name_that_no_header_can_carry() -> None:
    with pytest.raises(PrefixCacheClientError, match="tenant must be 1 to 128 printable ASCII characters"):
        TenantKeys().metadata("caf\u00e9")
