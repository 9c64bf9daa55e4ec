"""In whose name the requests of a load are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prefixcache_client.channel import caller_metadata, checked_api_key, checked_tenant
from prefixcache_client.errors import PrefixCacheClientError


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantKeys:
    """What a call of each tenant shows: its own key, or the one key of all and its name."""

    api_key: str | None = None
    """Of whoever sends what belongs to no tenant, or to one without a key."""
    by_tenant: Mapping[str, str] = field(default_factory=dict)

    def metadata(self, tenant: str | None) -> tuple[tuple[str, str], ...]:
        """As gRPC metadata and HTTP headers have it.

        Raises PrefixCacheClientError for a name that they cannot carry.
        """
        if tenant is not None and (own_key := self.by_tenant.get(tenant)) is not None:
            return caller_metadata(tenant=None, api_key=own_key)
        try:
            return caller_metadata(tenant=tenant, api_key=self.api_key)
        except ValueError as error:
            raise PrefixCacheClientError(str(error)) from None


def read_tenant_keys(path: str, *, api_key: str | None) -> TenantKeys:
    """The keys of a file with a tenant and its key, divided by spaces, in each line. "#" begins a comment.

    Raises OSError, and PrefixCacheClientError, which names the line and shows no key.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise PrefixCacheClientError(f"{path} is no UTF-8 text") from None
    by_tenant: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        *tenant, key = line.rsplit(maxsplit=1)
        try:
            by_tenant[checked_tenant("".join(tenant).strip())] = checked_api_key(key)
        except ValueError as error:
            raise PrefixCacheClientError(f"{path}, line {number}: must be TENANT KEY: {error}") from None
    return TenantKeys(api_key=api_key, by_tenant=by_tenant)
