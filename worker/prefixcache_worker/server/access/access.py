"""From what came with a call to who made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from prefixcache_worker.errors import PermissionDeniedError, UnauthenticatedError
from prefixcache_worker.server.access.api_keys import KeyRing
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.access.tenant_limits import NO_LIMITS, TenantTable
from prefixcache_worker.server.access.tenant_names import DEFAULT_TENANT, TENANT_NAME, is_tenant_name
from prefixcache_worker.server.validation.bounds import require

Metadata = Iterable[tuple[str, str | bytes]]
"""gRPC metadata, or HTTP headers: names in lower case, any of them more than once."""

AUTHORIZATION_KEY = "authorization"
TENANT_KEY = "x-tenant-id"


class Access(Protocol):
    """Decides who may call. Both doors ask it for every call."""

    def caller(self, metadata: Metadata) -> Caller:
        """Raises UnauthenticatedError, PermissionDeniedError, or InvalidRequestError."""


class OpenAccess:
    """No credentials: everyone is an admin. An `authorization` that comes all the same says nothing."""

    def __init__(
        self, *, trusts_tenant_header: bool = False, tenants: Callable[[], TenantTable] = NO_LIMITS.itself
    ) -> None:
        """With `trusts_tenant_header`, `x-tenant-id` names the tenant; `tenants` tells the limits now."""
        self._trusts_tenant_header = trusts_tenant_header
        self._tenants = tenants

    def caller(self, metadata: Metadata) -> Caller:
        tenant = named_tenant(metadata)
        if tenant is None:
            tenant = DEFAULT_TENANT
        elif not self._trusts_tenant_header:
            raise _not_trusted()
        return Caller(tenant=tenant, role=Role.ADMIN, limits=self._tenants().limits_of(tenant))


class KeyAccess:
    """Tenant and role are those of the API key. A proxy that has an admin's key may speak for tenants."""

    def __init__(
        self,
        keys: Callable[[], KeyRing],
        *,
        trusts_tenant_header: bool = False,
        tenants: Callable[[], TenantTable] = NO_LIMITS.itself,
    ) -> None:
        """`keys` and `tenants` tell the keys and the limits now.

        With `trusts_tenant_header`, a call with an admin's key and `x-tenant-id` is a user's of that tenant.
        """
        self._keys = keys
        self._trusts_tenant_header = trusts_tenant_header
        self._tenants = tenants

    def caller(self, metadata: Metadata) -> Caller:
        metadata = tuple(metadata)
        key = self._keys().find(_bearer_token(metadata))
        if key is None:
            # The same words for an unknown id and for a wrong secret.
            raise UnauthenticatedError("the API key is none of this worker's; it may have been revoked")
        tenant, role = key.tenant, key.role
        named = named_tenant(metadata)
        if named is not None:
            if not self._trusts_tenant_header:
                raise _not_trusted()
            if role < Role.ADMIN:
                raise PermissionDeniedError(
                    f"{TENANT_KEY} needs an admin's key; leave it out: the key says who you are"
                )
            tenant, role = named, Role.USER
        return Caller(tenant=tenant, role=role, limits=self._tenants().limits_of(tenant))


def named_tenant(metadata: Metadata) -> str | None:
    """The one `x-tenant-id`; None without it.

    Raises InvalidRequestError.
    """
    tenants = [value for key, value in metadata if key == TENANT_KEY]
    if not tenants:
        return None
    require(len(tenants) == 1, TENANT_KEY, f"sent {len(tenants)} times; send it once")
    tenant = tenants[0]
    require(
        isinstance(tenant, str) and is_tenant_name(tenant),
        TENANT_KEY,
        f"must be {TENANT_NAME}",
    )
    return str(tenant)


def _bearer_token(metadata: Metadata) -> str:
    """What the one `authorization` bears. Raises UnauthenticatedError without showing any of it."""
    values = [value for key, value in metadata if key == AUTHORIZATION_KEY]
    if len(values) == 1 and isinstance(values[0], str):
        scheme, _, token = values[0].partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
    raise UnauthenticatedError("this worker needs an API key: send `authorization: Bearer KEY`, once")


def _not_trusted() -> PermissionDeniedError:
    return PermissionDeniedError(
        f"this worker takes nobody's word for a tenant: leave {TENANT_KEY} out, or start the worker with "
        "--trust-tenant-header"
    )
