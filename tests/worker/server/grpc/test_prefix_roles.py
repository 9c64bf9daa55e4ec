"""Who may make, see, change and delete which prefixes, and how many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.named_callers import as_caller, served_to_named
from support.served_worker import ServedWorker
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.tenant_limits import TenantLimits

TOKENS = list(range(10, 10 + 40))  # two whole blocks, and half of one


@pytest.fixture
async def guarded() -> AsyncIterator[ServedWorker]:
    limits = TenantLimits(max_pinned_blocks=3)
    async with served_to_named(loaded(tiny_decoder(vocabulary_size=300)), limits=limits) as serving:
        yield serving


def of_tokens(token_ids: list[int] = TOKENS, **fields: Any) -> cache_pb2.CreatePrefixRequest:
    return cache_pb2.CreatePrefixRequest(token_ids=inference_pb2.TokenIds(ids=token_ids), **fields)


async def as_role(worker: ServedWorker, role: Role, message: Any, tenant: str = "acme") -> Any:
    """The answer, or the code of the refusal."""
    method = getattr(worker.cache, type(message).__name__.removesuffix("Request"))
    try:
        return await method(message, **as_caller(tenant, role))
    except grpc.aio.AioRpcError as error:
        return error.code()


async def test_roles_decide_over_what_is_public_and_what_is_others(guarded: ServedWorker) -> None:
    denied = grpc.StatusCode.PERMISSION_DENIED
    assert await as_role(guarded, Role.USER, of_tokens(public=True)) is denied
    public = (await as_role(guarded, Role.PUBLISHER, of_tokens(public=True))).prefix
    private = (await as_role(guarded, Role.USER, of_tokens([9] * 16), "other")).prefix

    get_public = cache_pb2.GetPrefixRequest(prefix_id=public.prefix_id)
    get_private = cache_pb2.GetPrefixRequest(prefix_id=private.prefix_id)
    assert (await as_role(guarded, Role.USER, get_public, "other")).prefix.num_blocks == 2
    assert await as_role(guarded, Role.PUBLISHER, get_private) is grpc.StatusCode.NOT_FOUND
    assert (await as_role(guarded, Role.ADMIN, get_private)).prefix.tenant == "other"

    delete_public = cache_pb2.DeletePrefixRequest(prefix_id=public.prefix_id)
    assert await as_role(guarded, Role.PUBLISHER, delete_public, "other") is denied
    await as_role(guarded, Role.ADMIN, delete_public, "other")
    assert await as_role(guarded, Role.USER, get_public, "other") is grpc.StatusCode.NOT_FOUND

    for message in (cache_pb2.GetUsageRequest(tenant="other"), cache_pb2.GetUsageRequest(all_tenants=True)):
        assert await as_role(guarded, Role.PUBLISHER, message) is denied
        assert (await as_role(guarded, Role.ADMIN, message)).tenants
    own = await as_role(guarded, Role.USER, cache_pb2.GetUsageRequest(tenant="acme"))
    assert [usage.tenant for usage in own.tenants] == ["acme"]


async def test_a_tenant_keeps_no_more_than_its_own_limit(guarded: ServedWorker) -> None:
    assert (await as_role(guarded, Role.USER, of_tokens())).prefix.num_blocks == 2
    refusal = await as_role(guarded, Role.USER, of_tokens([9] * 32))
    assert refusal is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await as_role(guarded, Role.USER, of_tokens([9] * 16))).prefix.num_blocks == 1
    assert (await as_role(guarded, Role.USER, of_tokens([9] * 32), "other")).prefix.num_blocks == 2
