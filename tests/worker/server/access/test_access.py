"""Who calls: what the metadata says, and what each role allows."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import Namespace
from prefixcache_worker.errors import InvalidRequestError, PermissionDeniedError, UnauthenticatedError
from prefixcache_worker.server.access.access import Access, KeyAccess, OpenAccess
from prefixcache_worker.server.access.api_keys import KeyRing, make_key
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.access.tenant_limits import TenantLimits, TenantTable

USER_KEY, USER = make_key(tenant="shop", role=Role.USER, label="", created="")
ADMIN_KEY, ADMIN = make_key(tenant="house", role=Role.ADMIN, label="", created="")
REVOKED_KEY, _ = make_key(tenant="shop", role=Role.ADMIN, label="", created="")
KEYS = KeyRing([USER, ADMIN])


def keyed(*, trusts_tenant_header: bool = False) -> KeyAccess:
    return KeyAccess(lambda: KEYS, trusts_tenant_header=trusts_tenant_header)


def bearer(key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {key}"


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


@pytest.mark.parametrize("access", [OpenAccess(), keyed()])
def test_nobodys_word_is_taken_for_a_tenant(access: Access):
    with pytest.raises(PermissionDeniedError, match="leave x-tenant-id out, or start the worker with"):
        access.caller([bearer(ADMIN_KEY), ("x-tenant-id", "shop")])


def test_without_keys_a_credential_says_nothing():
    assert OpenAccess().caller([bearer("sk-whatever")]) == Caller(tenant="default", role=Role.ADMIN)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_tenant_and_role_are_the_keys(scheme: str):
    assert keyed().caller([("authorization", f"{scheme} {USER_KEY}")]) == Caller(
        tenant="shop", role=Role.USER
    )
    assert keyed().caller([bearer(ADMIN_KEY)]) == Caller(tenant="house", role=Role.ADMIN)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [USER_KEY],
        [f"Basic {USER_KEY}"],
        [b"Bearer x"],
        [f"Bearer {USER_KEY}", f"Bearer {USER_KEY}"],
        [""],
    ],
)
def test_without_one_bearer_key_nobody_gets_in(values: list[Any]):
    with pytest.raises(UnauthenticatedError, match="needs an API key: send `authorization: Bearer KEY`"):
        keyed().caller([("authorization", value) for value in values])


def test_all_keys_that_are_none_are_refused_in_the_same_words():
    wrong_secret = USER_KEY[:-64] + REVOKED_KEY[-64:]
    sentences = set()
    for key in (REVOKED_KEY, wrong_secret, "", "sk-123", USER_KEY.upper()):
        with pytest.raises(UnauthenticatedError) as caught:
            keyed().caller([bearer(key)])
        sentences.add(str(caught.value))
    assert sentences == {"the API key is none of this worker's; it may have been revoked"}


def test_a_proxy_with_an_admins_key_speaks_for_users():
    caller = keyed(trusts_tenant_header=True).caller([bearer(ADMIN_KEY), ("x-tenant-id", "guest")])
    assert caller == Caller(tenant="guest", role=Role.USER)
    alone = keyed(trusts_tenant_header=True).caller([bearer(ADMIN_KEY)])
    assert alone == Caller(tenant="house", role=Role.ADMIN)


def test_b42_a_users_key_cannot_name_another_tenant():
    for tenant in ("house", "shop"):
        with pytest.raises(PermissionDeniedError, match="x-tenant-id needs an admin's key"):
            keyed(trusts_tenant_header=True).caller([bearer(USER_KEY), ("x-tenant-id", tenant)])


def test_who_has_no_key_is_told_nothing_about_the_tenant_header():
    for access in (keyed(), keyed(trusts_tenant_header=True)):
        with pytest.raises(UnauthenticatedError):
            access.caller([("x-tenant-id", "shop"), bearer(REVOKED_KEY)])


def test_the_limits_are_those_of_the_tenant_in_whose_name_it_is():
    guest = TenantLimits(max_live_requests=1)
    table = TenantTable(default=TenantLimits(max_live_requests=9), limits_by_tenant={"guest": guest})
    access = KeyAccess(lambda: KEYS, trusts_tenant_header=True, tenants=table.itself)
    assert access.caller([bearer(ADMIN_KEY)]).limits.max_live_requests == 9
    assert access.caller([bearer(ADMIN_KEY), ("x-tenant-id", "guest")]).limits == guest


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
