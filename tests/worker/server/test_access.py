"""Who calls: what the metadata says, and what each role allows."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import Namespace
from prefixcache_worker.errors import InvalidRequestError, PermissionDeniedError
from prefixcache_worker.server.access import OpenAccess
from prefixcache_worker.server.caller import Caller, Role


@pytest.mark.parametrize(
    ("metadata", "tenant"),
    [
        ([], "default"),
        ([("user-agent", "grpc")], "default"),
        ([("x-tenant-id", "shop 1")], "shop 1"),
        ([("x-tenant-id", "~" * 128)], "~" * 128),
    ],
)
def test_the_tenant_comes_from_the_metadata(metadata: list[tuple[str, str]], tenant: str):
    assert OpenAccess(trusts_tenant_header=True).caller(metadata) == Caller(tenant=tenant, role=Role.ADMIN)


@pytest.mark.parametrize("values", [[""], ["~" * 129], ["caf\u00e9"], ["a\tb"], [b"shop"], ["a", "a"]])
def test_a_bad_tenant_is_refused(values: list[Any]):
    with pytest.raises(InvalidRequestError) as caught:
        OpenAccess(trusts_tenant_header=True).caller([("x-tenant-id", value) for value in values])
    assert caught.value.field_name == "x-tenant-id"


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("needed", Role)
def test_a_role_allows_what_lower_ones_do(role: Role, needed: Role):
    caller = Caller(tenant="shop", role=role)
    if role >= needed:
        caller.require(needed, "this")
        return
    with pytest.raises(
        PermissionDeniedError,
        match=f"this needs the role {needed.name.lower()}; this credential has {role.name.lower()}",
    ):
        caller.require(needed, "this")


@pytest.mark.parametrize(
    ("role", "may_publish"), [(Role.USER, False), (Role.PUBLISHER, True), (Role.ADMIN, True)]
)
def test_the_namespace_is_the_callers_own(role: Role, may_publish: bool):
    namespace = Caller(tenant="shop", role=role).namespace("build", salt="s")

    assert namespace == Namespace(model="build", tenant="shop", salt="s")
    assert namespace.is_publisher is may_publish
