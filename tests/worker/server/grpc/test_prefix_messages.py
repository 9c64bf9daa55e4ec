"""What a caller's role decides about prefixes and usage, and what is told to whom."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from support.validated_requests import MODEL

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.engine.prefix_book import Prefix, PrefixOrder
from prefixcache_worker.engine.tenant_usage import TenantUsage
from prefixcache_worker.errors import PermissionDeniedError
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.grpc.prefix_calls import prefix_to_proto, usage_to_proto
from prefixcache_worker.server.validation.generate import request_from_proto
from prefixcache_worker.server.validation.prefixes import PrefixTtl, prefix_order_from_proto

TTL = PrefixTtl(usual_seconds=60, max_seconds=600)
PREFIX = Prefix(
    prefix_id="x",
    tenant="shop",
    label="policy",
    num_tokens=40,
    num_kept_tokens=32,
    num_blocks=2,
    public=True,
    ttl_seconds=60,
    seconds_left=41.5,
    num_uses=7,
    created_ns=123,
)


def caller(role: Role, tenant: str = "shop") -> Caller:
    return Caller(tenant=tenant, role=role)


def order(role: Role, *, public: bool) -> PrefixOrder:
    message = cache_pb2.CreatePrefixRequest(token_ids=inference_pb2.TokenIds(ids=[5] * 20), public=public)
    return prefix_order_from_proto(message, caller=caller(role), model=MODEL, ttl=TTL)


def test_a_public_prefix_needs_a_publisher() -> None:
    with pytest.raises(PermissionDeniedError, match="a public prefix needs the role publisher"):
        order(Role.USER, public=True)
    assert order(Role.PUBLISHER, public=True).num_public_tokens == 20
    assert order(Role.USER, public=False).num_public_tokens == 0


def test_a_user_reads_a_public_prefix_without_publishing_it() -> None:
    """The cache refuses public tokens of those who may not publish; what is public they find all the same."""
    kept = order(Role.PUBLISHER, public=True)
    message = inference_pb2.GenerateRequest(prefix_id="x", text="hi")
    for role, num_public_tokens in ((Role.USER, 0), (Role.PUBLISHER, 20), (Role.ADMIN, 20)):
        request = request_from_proto(message, caller=caller(role, "other"), model=MODEL, prefix=kept)
        assert request.num_public_tokens == num_public_tokens
        assert request.namespace.tenant == "other"
        assert request.prompt_token_ids[:20] == (5,) * 20


def test_how_a_public_prefix_is_used_is_told_to_admins_alone() -> None:
    for_admin = prefix_to_proto(PREFIX, caller(Role.ADMIN))
    assert (for_admin.num_uses, for_admin.seconds_left) == (7, 41.5)
    busy, idle = PREFIX, replace(PREFIX, num_uses=0, seconds_left=1)
    for role in (Role.USER, Role.PUBLISHER):
        assert prefix_to_proto(busy, caller(role)) == prefix_to_proto(idle, caller(role))
    own = prefix_to_proto(replace(PREFIX, public=False), caller(Role.USER))
    assert (own.num_uses, own.seconds_left) == (7, 41.5)


def test_for_ever_is_zero() -> None:
    message = prefix_to_proto(replace(PREFIX, ttl_seconds=inf, seconds_left=inf), caller(Role.ADMIN))
    assert (message.ttl_seconds, message.seconds_left) == (0, 0)


def test_parts_of_public_blocks_are_told_to_admins_alone() -> None:
    usage = TenantUsage(tenant="shop", num_blocks=3, num_charged_blocks=3.25, ceiling_blocks=9)
    assert usage_to_proto(usage, caller(Role.ADMIN)).num_charged_blocks == 3.25
    message = usage_to_proto(usage, caller(Role.USER))
    assert (message.num_blocks, message.num_charged_blocks, message.ceiling_blocks) == (3, 0, 9)
