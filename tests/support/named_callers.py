"""Callers who say who they are: for tests of what each may see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.served_worker import ServedWorker, served

from prefixcache_worker.errors import UnauthenticatedError
from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.server.access.access import Metadata
from prefixcache_worker.server.access.access_settings import AccessSettings
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.access.tenant_limits import TenantLimits

_KEY = "x-test-caller"


class NamedCallers:
    """Believes whoever names a tenant and a role: stands for the file of keys."""

    def __init__(self, limits: TenantLimits | None = None) -> None:
        self._limits = limits or TenantLimits()

    def caller(self, metadata: Metadata) -> Caller:
        named = dict(metadata).get(_KEY)
        if named is None:
            raise UnauthenticatedError("say who you are")
        tenant, _, role = str(named).partition(":")
        return Caller(tenant=tenant, role=Role[role], limits=self._limits)


def caller_headers(tenant: str, role: Role = Role.USER) -> dict[str, str]:
    """What names the caller of an HTTP call."""
    return {_KEY: f"{tenant}:{role.name}"}


def as_caller(tenant: str, role: Role = Role.USER) -> dict[str, Any]:
    """Arguments of a call of a stub."""
    return {"metadata": list(caller_headers(tenant, role).items()), "timeout": 30.0}


ADMIN = as_caller("root", Role.ADMIN)


@asynccontextmanager
async def served_to_named(
    loaded: LoadedModel, *, limits: TenantLimits | None = None, **settings: Any
) -> AsyncIterator[ServedWorker]:
    """`served`, to named callers only, who all have these limits."""
    callers = AccessSettings(access=NamedCallers(limits))
    async with served(loaded, callers=callers, **settings) as worker:
        yield worker
