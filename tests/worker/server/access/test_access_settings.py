"""From settings to who may call: what a worker refuses to start with, and what its files say later."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError, PermissionDeniedError
from prefixcache_worker.server.access.access import OpenAccess
from prefixcache_worker.server.access.access_settings import access_settings, is_loopback
from prefixcache_worker.server.access.api_keys import make_key
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.access.key_file import KeyFile
from prefixcache_worker.server.access.tenant_limits import TenantLimits


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("worker.example:1", False),
    ],
)
def test_which_addresses_are_this_machines_alone(address: str, expected: bool):
    assert is_loopback(address) is expected


def test_an_address_that_others_reach_needs_keys_or_a_word():
    with pytest.raises(ConfigError, match=r"^--address: 0\.0\.0\.0:7000 can be reached .* give --keys, or"):
        access_settings(WorkerConfig(address="0.0.0.0:7000"))
    with pytest.raises(ConfigError, match=r"^--http-address: 0\.0\.0\.0:8000 can be reached"):
        access_settings(WorkerConfig(http_address="0.0.0.0:8000"))
    opened = access_settings(WorkerConfig(address="0.0.0.0:7000", open_access=True))
    assert opened.access.caller([]) == Caller(tenant="default", role=Role.ADMIN)


@pytest.mark.parametrize(
    ("changes", "is_warned"),
    [({}, True), ({"tls_certificate": "c", "tls_key": "k"}, False), ({"address": "127.0.0.1:0"}, False)],
)
def test_keys_that_travel_unencrypted_are_warned_of(
    changes: dict[str, str], is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "keys.json"
    KeyFile(path).add(make_key(tenant="shop", role=Role.USER, label="", created="")[1])
    access_settings(WorkerConfig(**{"address": "0.0.0.0:7000", "keys": str(path)} | changes))
    assert ("keys travel unencrypted to 0.0.0.0:7000" in caplog.text) is is_warned


def test_with_keys_any_address_will_do(tmp_path: Path):
    path = tmp_path / "keys.json"
    key, stored = make_key(tenant="shop", role=Role.USER, label="", created="")
    KeyFile(path).add(stored)
    settings = access_settings(WorkerConfig(address="0.0.0.0:7000", keys=str(path)))
    assert settings.access.caller([("authorization", f"Bearer {key}")]).tenant == "shop"


def test_a_missing_file_of_keys_says_how_to_make_it():
    with pytest.raises(
        ConfigError, match=r"^--keys: there is no /no/keys; make it with `prefixcache keys add"
    ):
        access_settings(WorkerConfig(keys="/no/keys"))


def test_open_access_and_keys_exclude_each_other(tmp_path: Path):
    with pytest.raises(ConfigError, match="drop one of them"):
        access_settings(WorkerConfig(keys="keys.json", open_access=True))


def test_the_tenant_header_is_taken_only_if_asked_for():
    header = [("x-tenant-id", "shop")]
    with pytest.raises(PermissionDeniedError):
        access_settings(WorkerConfig()).access.caller(header)
    trusting = access_settings(WorkerConfig(trust_tenant_header=True))
    assert trusting.access.caller(header).tenant == "shop"


def test_limits_come_from_their_file(tmp_path: Path):
    path = tmp_path / "tenants.toml"
    path.write_text("[default]\nmax_live_requests = 3\n")
    settings = access_settings(WorkerConfig(tenants=str(path)))
    assert isinstance(settings.access, OpenAccess)
    assert settings.access.caller([]).limits == TenantLimits(max_live_requests=3)
    assert settings.tenants().limits_of("any") == TenantLimits(max_live_requests=3)

    path.write_text("[default]\nmax_live = 3\n")
    with pytest.raises(ConfigError, match=rf"^--tenants: {path}: default: unknown key 'max_live'; known are"):
        access_settings(WorkerConfig(tenants=str(path)))
