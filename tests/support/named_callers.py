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

_KEY = "x-test-caller"


class NamedCallers:
    """Believes whoever names a tenant and a role."""

    def caller(self, metadata: Metadata) -> Caller:
        named = dict(metadata).get(_KEY)
        if named is None:
            raise UnauthenticatedError("say who you are")
        tenant, _, role = str(named).partition(":")
        return Caller(tenant=tenant, role=Role[role])


def as_caller(tenant: str, role: Role = Role.USER) -> dict[str, Any]:
    """Arguments of a call of a stub."""
    return {"metadata": [(_KEY, f"{tenant}:{role.name}")], "timeout": 30.0}


ADMIN = as_caller("root", Role.ADMIN)


@asynccontextmanager
async def served_to_named(loaded: LoadedModel, **settings: Any) -> AsyncIterator[ServedWorker]:
    """`served`, to named callers only."""
    async with served(loaded, callers=AccessSettings(access=NamedCallers()), **settings) as worker:
        yield worker
