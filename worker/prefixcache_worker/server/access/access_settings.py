"""What the settings say about who may call, and how much."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.access.access import Access, KeyAccess, OpenAccess
from prefixcache_worker.server.access.api_keys import KeyRing, keys_from_text
from prefixcache_worker.server.access.tenant_limits import NO_LIMITS, TenantTable, parse_tenant_table
from prefixcache_worker.server.access.watched_file import WatchedFile
from prefixcache_worker.server_address import split_address

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Both change with their files."""

    access: Access = field(default_factory=OpenAccess)
    tenants: Callable[[], TenantTable] = NO_LIMITS.itself
    """Tells the limits of all tenants now."""


def access_settings(config: WorkerConfig) -> AccessSettings:
    """Read the files of keys and limits.

    Raises ConfigError, also when the worker could be reached from elsewhere by callers that nobody checks.
    """
    tenants: Callable[[], TenantTable] = NO_LIMITS.itself
    if config.tenants is not None:
        tenants = WatchedFile("--tenants", Path(config.tenants), parse_tenant_table).read
    doors = (("--address", config.address), ("--http-address", config.http_address))
    open_doors = [
        (flag, address) for flag, address in doors if address is not None and not is_loopback(address)
    ]
    if config.keys is None:
        access: Access = OpenAccess(trusts_tenant_header=config.trust_tenant_header, tenants=tenants)
        if open_doors and not config.open_access:
            flag, address = open_doors[0]
            raise ConfigError(
                f"{flag}: {address} can be reached from other machines, and without --keys everybody is an "
                "admin; give --keys, or --open-access if a network or a proxy decides who may call"
            )
    else:
        if config.open_access:
            raise ConfigError(
                "--open-access lets everybody call, and --keys only those who have one; drop one of them"
            )
        keys = _watched_keys(config.keys).read
        access = KeyAccess(keys, trusts_tenant_header=config.trust_tenant_header, tenants=tenants)
        if open_doors and config.tls_certificate is None:
            logger.warning(
                "%s: keys travel unencrypted to %s; give --tls-certificate, unless a proxy encrypts",
                *open_doors[0],
            )
    return AccessSettings(access=access, tenants=tenants)


def _watched_keys(path: str) -> WatchedFile[KeyRing]:
    if not Path(path).exists():
        raise ConfigError(
            f"--keys: there is no {path}; make it with `prefixcache keys add --tenant NAME --file {path}`"
        )
    return WatchedFile("--keys", Path(path), keys_from_text)


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT can be reached from this machine alone. A name other than localhost counts as no."""
    host = split_address(address)[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
