"""The calls on prefixes and usage: what they ask of the engine, and their messages."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import NamedTuple

from prefixcache import unpack_tokens
from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.prefix_book import Prefix, PrefixOrder
from prefixcache_worker.engine.request import Completion, Request, Usage
from prefixcache_worker.engine.tenant_usage import TenantUsage, tenant_usage
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.validation.prefixes import (
    PrefixTtl,
    checked_label,
    checked_prefix_id,
    page_from_proto,
)


class CreatedPrefix(NamedTuple):
    """A kept prefix, and what computing it has cost: nothing when it was kept already."""

    prefix: Prefix
    usage: Usage | None


async def create_prefix(
    order: PrefixOrder, request_id: str, *, engine_loop: EngineLoop, deadline: float | None = None
) -> CreatedPrefix:
    """Compute and keep a prefix, or renew the one that is kept. Being cancelled cancels the computation.

    Raises what `EngineLoop.submit` and the request itself raise, PrefixBudgetError, PrefixLostError, or
    SchemeError.
    """

    def renew(engine: Engine) -> Prefix | None:
        same = engine.prefixes.renew_same(order)
        if same is None:
            engine.prefixes.require_room(order)  # before it is computed in vain
        return same

    same = await engine_loop.call(renew)
    if same is not None:
        return CreatedPrefix(same, None)
    request = Request(
        request_id=request_id,
        namespace=order.namespace,
        prompt_token_ids=tuple(unpack_tokens(order.tokens)),
        num_public_tokens=order.num_public_tokens,
        kept_as=order,
    )
    async with engine_loop.submit(request, deadline=deadline) as events:
        async for event in events:
            assert isinstance(event, Completion)
            assert event.prefix is not None
            return CreatedPrefix(event.prefix, event.usage)
    raise AssertionError("a request ended without its last event")


async def get_prefix(
    message: cache_pb2.GetPrefixRequest, *, caller: Caller, engine_loop: EngineLoop
) -> cache_pb2.GetPrefixResponse:
    """Raises NotFoundError, InvalidRequestError, or SchemeError."""
    prefix_id = checked_prefix_id(message.prefix_id)
    prefix = await engine_loop.call(
        lambda engine: engine.prefixes.get(prefix_id, tenant=caller.tenant, sees_all=caller.is_admin)
    )
    return cache_pb2.GetPrefixResponse(prefix=prefix_to_proto(prefix, caller))


async def list_prefixes(
    message: cache_pb2.ListPrefixesRequest, *, caller: Caller, engine_loop: EngineLoop
) -> cache_pb2.ListPrefixesResponse:
    """Raises InvalidRequestError, or SchemeError."""
    after_ns, size = page_from_proto(message)
    prefixes, has_more = await engine_loop.call(
        lambda engine: engine.prefixes.page(caller.tenant, after_ns=after_ns, size=size)
    )
    return cache_pb2.ListPrefixesResponse(
        prefixes=[prefix_to_proto(prefix, caller) for prefix in prefixes],
        next_page_token=str(prefixes[-1].created_ns) if has_more else "",
    )


async def update_prefix(
    message: cache_pb2.UpdatePrefixRequest, *, caller: Caller, engine_loop: EngineLoop, ttl: PrefixTtl
) -> cache_pb2.UpdatePrefixResponse:
    """Raises NotFoundError, PermissionDeniedError, InvalidRequestError, or SchemeError."""
    prefix_id, ttl_seconds = checked_prefix_id(message.prefix_id), ttl.checked(message)
    label = checked_label(message.label) if message.HasField("label") else None
    prefix = await engine_loop.call(
        lambda engine: engine.prefixes.update(
            prefix_id, tenant=caller.tenant, sees_all=caller.is_admin, ttl_seconds=ttl_seconds, label=label
        )
    )
    return cache_pb2.UpdatePrefixResponse(prefix=prefix_to_proto(prefix, caller))


async def delete_prefix(
    message: cache_pb2.DeletePrefixRequest, *, caller: Caller, engine_loop: EngineLoop
) -> cache_pb2.DeletePrefixResponse:
    """Raises NotFoundError, PermissionDeniedError, InvalidRequestError, or SchemeError."""
    prefix_id = checked_prefix_id(message.prefix_id)
    await engine_loop.call(
        lambda engine: engine.prefixes.delete(prefix_id, tenant=caller.tenant, sees_all=caller.is_admin)
    )
    return cache_pb2.DeletePrefixResponse()


async def get_usage(
    message: cache_pb2.GetUsageRequest, *, caller: Caller, engine_loop: EngineLoop
) -> cache_pb2.GetUsageResponse:
    """Raises PermissionDeniedError."""
    if message.all_tenants or message.tenant not in ("", caller.tenant):
        caller.require(Role.ADMIN, "the usage of other tenants")
    tenants = None if message.all_tenants else [message.tenant or caller.tenant]
    usages = await engine_loop.call(lambda engine: tenant_usage(engine, tenants))
    return cache_pb2.GetUsageResponse(tenants=[usage_to_proto(usage, caller) for usage in usages])


def created_prefix_to_proto(created: CreatedPrefix, caller: Caller) -> cache_pb2.CreatePrefixResponse:
    """The message."""
    usage = None if created.usage is None else inference_pb2.Usage(**asdict(created.usage))
    return cache_pb2.CreatePrefixResponse(prefix=prefix_to_proto(created.prefix, caller), usage=usage)


def prefix_to_proto(prefix: Prefix, caller: Caller) -> cache_pb2.Prefix:
    """The message. How often and how lately tenants use a public prefix is told to admins alone."""
    tells_uses = caller.is_admin or not prefix.public
    seconds_left = prefix.seconds_left if tells_uses else prefix.ttl_seconds
    return cache_pb2.Prefix(
        prefix_id=prefix.prefix_id,
        tenant=prefix.tenant,
        label=prefix.label,
        num_tokens=prefix.num_tokens,
        num_kept_tokens=prefix.num_kept_tokens,
        num_blocks=prefix.num_blocks,
        public=prefix.public,
        ttl_seconds=0 if prefix.ttl_seconds == inf else prefix.ttl_seconds,
        seconds_left=0 if seconds_left == inf else seconds_left,
        num_uses=prefix.num_uses if tells_uses else 0,
    )


def usage_to_proto(usage: TenantUsage, caller: Caller) -> cache_pb2.TenantUsage:
    """The message. Parts of public blocks tell how many tenants use them, so only an admin is told."""
    message = cache_pb2.TenantUsage(**asdict(usage))
    if not caller.is_admin:
        message.num_charged_blocks = 0
    return message
