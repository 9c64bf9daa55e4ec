"""From what came with a call to who made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prefixcache_worker.server.caller import Caller, Role
from prefixcache_worker.server.validation.bounds import require

Metadata = Iterable[tuple[str, str | bytes]]
"""gRPC metadata, or HTTP headers: names in lower case, any of them more than once."""

TENANT_KEY = "x-tenant-id"
DEFAULT_TENANT = "default"
MAX_TENANT_LENGTH = 128


class Access(Protocol):
    """Decides who may call. Both doors ask it for every call."""

    def caller(self, metadata: Metadata) -> Caller:
        """Raises UnauthenticatedError, PermissionDeniedError, or InvalidRequestError."""


class OpenAccess:
    """No credentials: everyone is an admin, in the name of the tenant that the metadata names."""

    def caller(self, metadata: Metadata) -> Caller:
        return Caller(tenant=named_tenant(metadata) or DEFAULT_TENANT, role=Role.ADMIN)


def named_tenant(metadata: Metadata) -> str | None:
    """The one `x-tenant-id`: 1 to 128 printable ASCII characters; None without it.

    Raises InvalidRequestError.
    """
    tenants = [value for key, value in metadata if key == TENANT_KEY]
    if not tenants:
        return None
    require(len(tenants) == 1, TENANT_KEY, f"sent {len(tenants)} times; send it once")
    tenant = tenants[0]
    require(
        isinstance(tenant, str)
        and 1 <= len(tenant) <= MAX_TENANT_LENGTH
        and tenant.isascii()
        and tenant.isprintable(),
        TENANT_KEY,
        f"must be 1 to {MAX_TENANT_LENGTH} printable ASCII characters",
    )
    return str(tenant)
