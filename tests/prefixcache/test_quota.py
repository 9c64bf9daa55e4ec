"""What tenants are charged for, what they may not exceed, and what others may not take from them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import finish, num_matched, run, start
from support.cache_state import observed
from support.token_streams import stream

from prefixcache import (
    POLICIES,
    InvalidArgumentError,
    Namespace,
    OutOfBlocksError,
    PrefixCache,
    QuotaExceededError,
    TenantQuota,
    UnknownTenantError,
)

TENANTS = [Namespace("model", f"tenant {letter}", is_publisher=True) for letter in "abcdefghijkl"]
A, B, C, D = TENANTS[:4]
X = [9999]
REQUESTS = st.tuples(
    st.sampled_from(TENANTS[:4]),
    st.lists(st.integers(0, 1), min_size=1, max_size=24),
    st.integers(0, 24),
)
"""Whose, the prompt, and how much of it is public."""


def charge(cache: PrefixCache, namespace: Namespace) -> float:
    return cache.usage(namespace.tenant).num_charged_blocks


def serve(cache: PrefixCache, requests: list[tuple[Namespace, list[int], int]]) -> None:
    for namespace, prompt, num_public in requests:
        try:
            run(cache, prompt, namespace, num_public_tokens=min(num_public, len(prompt)))
        except (OutOfBlocksError, QuotaExceededError):
            cache.check()


# Charges


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(REQUESTS, max_size=10), held=st.lists(REQUESTS, max_size=3))
def test_all_charges_sum_to_the_blocks_that_are_used(
    requests: list[tuple[Namespace, list[int], int]], held: list[tuple[Namespace, list[int], int]]
) -> None:
    cache = PrefixCache(num_blocks=100, block_size=4)
    serve(cache, requests)
    for namespace, prompt, num_public in held:
        start(cache, prompt, namespace, num_public_tokens=min(num_public, len(prompt)))
    usages = [cache.usage(tenant) for tenant in cache.tenants()]
    assert sum(usage.num_charged_blocks for usage in usages) == pytest.approx(100 - cache.stats().num_free)
    num_public = sum(len(node.block_ids) for node in cache.dump() if node.public)
    assert sum(usage.num_blocks for usage in usages) == 100 - cache.stats().num_free - num_public
    num_private = sum(len(node.block_ids) for node in cache.dump() if not node.public)
    assert sum(usage.num_cached_blocks for usage in usages) == num_private


def test_a_sequence_is_charged_for_its_blocks_from_allocation_on() -> None:
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 40), A)
    usage = cache.usage(A.tenant)
    assert (usage.num_blocks, usage.num_cached_blocks, usage.num_charged_blocks) == (3, 0, 3)
    cache.publish(handle, 32)
    usage = cache.usage(A.tenant)
    assert (usage.num_blocks, usage.num_cached_blocks, usage.num_charged_blocks) == (3, 2, 3)
    cache.release(handle)
    assert charge(cache, A) == 2


def test_what_sequences_of_one_tenant_share_is_charged_once() -> None:
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 40), A)
    forks = [cache.fork(handle) for _ in range(3)]
    assert charge(cache, A) == 3
    cache.extend(forks[0], X)  # which copies the tail
    assert charge(cache, A) == 4
    for fork in [handle, *forks]:
        cache.release(fork)
        cache.check()
    assert charge(cache, A) == 0


def test_a_public_block_is_paid_in_equal_parts_by_the_last_eight_that_used_it() -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, stream("s", 64), A, num_public_tokens=64)
    users = [A]
    for namespace in [*TENANTS, A, C, *TENANTS[::-1], A]:
        cache.release(start(cache, stream("s", 64) + X, namespace))
        users = [user for user in users if user != namespace] + [namespace]
        part = float(Fraction(4, min(8, len(users))))
        expected = {user.tenant: part for user in users[-8:]}
        assert {tenant: cache.usage(tenant).num_charged_blocks for tenant in cache.tenants()} == {
            tenant: pytest.approx(expected.get(tenant, 0)) for tenant in cache.tenants()
        }


def test_a_tenant_pays_for_those_public_blocks_that_it_used() -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, stream("s", 64), A, num_public_tokens=64)
    cache.release(start(cache, stream("s", 32) + X, B))
    assert (charge(cache, A), charge(cache, B)) == (3, 1)
    cache.release(start(cache, X, C))
    assert charge(cache, C) == 0


def test_blocks_that_become_public_are_not_charged_twice() -> None:
    cache = PrefixCache(num_blocks=40)
    handle = start(cache, stream("s", 64) + X, A, num_public_tokens=64)
    assert charge(cache, A) == 5
    cache.publish(handle, 64)
    assert charge(cache, A) == 5
    assert cache.usage(A.tenant).num_blocks == 1


def test_nobody_pays_more_because_another_goes_on_with_a_shared_prefix() -> None:
    """B has used what A has published; what A adds behind it later is A's alone."""
    cache = PrefixCache(num_blocks=40)
    one = start(cache, stream("s", 64), A, num_public_tokens=64)
    other = start(cache, stream("s", 32), B, num_public_tokens=32)
    cache.publish(one, 32)
    cache.publish(other, 32)
    cache.check()
    assert (charge(cache, A), charge(cache, B)) == (3, 1)
    cache.release(other)
    cache.publish(one, 64)
    cache.check()
    assert (charge(cache, A), charge(cache, B)) == (3, 1)


def test_nobody_pays_more_because_what_it_has_pinned_is_continued() -> None:
    cache = PrefixCache(num_blocks=40)
    handle = start(cache, stream("s", 64), A, num_public_tokens=64)
    cache.publish(handle, 32)
    cache.end_pin(cache.pin(stream("s", 32), B))
    cache.publish(handle, 64)
    cache.check()
    assert (charge(cache, A), charge(cache, B)) == (3, 1)


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=12))
def test_a_tenant_that_does_nothing_is_never_charged_more(
    requests: list[tuple[Namespace, list[int], int]],
) -> None:
    cache = PrefixCache(num_blocks=16, block_size=4)
    serve(cache, [(namespace, [0, 1] * 8, 8) for namespace in TENANTS[:4]])
    for request in requests:
        before = {namespace: charge(cache, namespace) for namespace in TENANTS[:4]}
        serve(cache, [request])
        for namespace in set(TENANTS[:4]) - {request[0]}:
            assert charge(cache, namespace) <= before[namespace] + 1e-9


# Ceilings


def test_a_ceiling_is_kept_by_ones_own_idle_blocks_though_the_pool_is_free() -> None:
    cache = PrefixCache(num_blocks=40, policy="lru", quotas={A.tenant: TenantQuota(ceiling_blocks=4)})
    run(cache, stream("b", 64), B)
    run(cache, stream("a", 48), A)
    run(cache, stream("c", 48), A)
    assert cache.usage(A.tenant).num_cached_blocks == 4
    assert cache.usage(A.tenant).num_evicted_blocks == 2
    assert num_matched(cache, stream("a", 48) + X, A) == 16
    assert num_matched(cache, stream("b", 64) + X, B) == 64
    assert cache.stats().num_free == 32


def test_above_the_ceiling_nothing_is_given_out_and_nothing_evicted() -> None:
    cache = PrefixCache(num_blocks=40, quotas={A.tenant: TenantQuota(ceiling_blocks=4)})
    run(cache, stream("a", 16), A)
    held = start(cache, stream("c", 32), A)
    before = observed(cache)
    with pytest.raises(QuotaExceededError, match="needs 3 blocks, but holds 3 of at most 4") as caught:
        cache.acquire(stream("d", 48), A)
    assert (caught.value.num_needed, caught.value.ceiling_blocks) == (3, 4)
    assert (caught.value.num_held, caught.value.num_idle) == (3, 1)
    with pytest.raises(QuotaExceededError, match="needs 3 blocks"):
        cache.extend(held, stream("c", 80, 32))
    assert observed(cache) == before
    cache.extend(held, stream("c", 64, 32))
    cache.check()
    assert charge(cache, A) == 4


def test_public_blocks_are_charged_but_count_towards_no_ceiling() -> None:
    """Whoever publishes or reads public prompts is never locked out by them."""
    cache = PrefixCache(num_blocks=40, quotas={A.tenant: TenantQuota(ceiling_blocks=4)})
    for letter in "sbc":
        run(cache, stream(letter, 64), A, num_public_tokens=64)
    assert charge(cache, A) == 12
    cache.pin(stream("s", 64), A)
    run(cache, stream("s", 64) + stream("a", 64), A)
    assert cache.usage(A.tenant).num_blocks == 4
    with pytest.raises(QuotaExceededError, match="needs 5 blocks, but holds 4 of at most 4, of which 4"):
        cache.acquire(stream("s", 64) + stream("d", 80), A)


def test_a_lower_ceiling_takes_effect_with_the_next_block() -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, stream("a", 96), A)
    cache.set_quota(A.tenant, TenantQuota(ceiling_blocks=2))
    cache.check()
    assert cache.usage(A.tenant).num_cached_blocks == 6
    run(cache, stream("c", 16), A)
    assert cache.usage(A.tenant).num_cached_blocks == 2
    cache.set_quota(A.tenant, TenantQuota())
    run(cache, stream("d", 96), A)
    assert cache.usage(A.tenant).num_cached_blocks == 8


@settings(max_examples=80, deadline=None)
@given(
    ceiling_blocks=st.integers(1, 6),
    requests=st.lists(REQUESTS, max_size=8),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=30),
)
def test_whoever_has_a_ceiling_never_holds_more(
    ceiling_blocks: int, requests: list[tuple[Namespace, list[int], int]], prompt: list[int]
) -> None:
    cache = PrefixCache(
        num_blocks=40, block_size=4, quotas={A.tenant: TenantQuota(ceiling_blocks=ceiling_blocks)}
    )
    serve(cache, requests)
    for part in (prompt, prompt + prompt[:7]):
        try:
            handle = start(cache, part, A)
        except QuotaExceededError:
            continue
        assert cache.usage(A.tenant).num_blocks <= ceiling_blocks
        finish(cache, handle)


# Floors


@settings(max_examples=25, deadline=None)
@given(
    floor_blocks=st.integers(1, 8),
    own=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=3),
    requests=st.lists(REQUESTS.filter(lambda request: request[0] != A), min_size=4, max_size=14),
    num_evicted=st.integers(0, 20),
)
@pytest.mark.parametrize("policy", POLICIES)
def test_others_never_take_what_is_below_a_floor(
    policy: str,
    floor_blocks: int,
    own: list[list[int]],
    requests: list[tuple[Namespace, list[int], int]],
    num_evicted: int,
) -> None:
    cache = PrefixCache(
        num_blocks=12, block_size=4, policy=policy, quotas={A.tenant: TenantQuota(floor_blocks=floor_blocks)}
    )
    serve(cache, [(A, prompt, 0) for prompt in own])
    num_protected = min(floor_blocks, cache.usage(A.tenant).num_cached_blocks)
    for request in requests:
        serve(cache, [request])
        assert cache.usage(A.tenant).num_cached_blocks >= num_protected
    cache.evict(num_evicted)
    cache.check()
    assert cache.usage(A.tenant).num_cached_blocks >= num_protected


def test_a_tenant_may_go_below_its_own_floor() -> None:
    cache = PrefixCache(num_blocks=4, policy="lru", quotas={A.tenant: TenantQuota(floor_blocks=3)})
    run(cache, stream("a", 64), A)
    with pytest.raises(OutOfBlocksError, match="need 2 blocks, but only 0 are free and 1 can be evicted"):
        cache.acquire(stream("b", 32), B)
    handle = start(cache, stream("c", 64), A)
    assert cache.usage(A.tenant).num_cached_blocks == 0
    finish(cache, handle)


def test_a_public_prefix_stays_under_what_a_floor_keeps() -> None:
    cache = PrefixCache(num_blocks=8, quotas={A.tenant: TenantQuota(floor_blocks=2)})
    run(cache, stream("s", 32), D, num_public_tokens=32)
    run(cache, stream("s", 32) + stream("a", 32), A)
    with pytest.raises(OutOfBlocksError, match="need 5 blocks, but only 4 are free and 0 can be evicted"):
        cache.acquire(stream("b", 80), B)
    assert cache.evict(8) == 0
    run(cache, stream("b", 64), B)
    assert num_matched(cache, stream("s", 32) + stream("a", 32) + X, A) == 64
    cache.set_quota(A.tenant, TenantQuota(floor_blocks=0))
    run(cache, stream("b", 128), B)
    assert cache.usage(B.tenant).num_cached_blocks == 8


def test_its_own_floor_keeps_no_public_block_from_a_tenant() -> None:
    """For others B's leaf is passed over, and so is the public prefix above it. B can have both."""
    cache = PrefixCache(num_blocks=6, quotas={B.tenant: TenantQuota(floor_blocks=6)})
    run(cache, stream("s", 32), D, num_public_tokens=32)
    run(cache, stream("s", 32) + stream("b", 32), B)
    assert cache.evict(6) == 0
    with pytest.raises(OutOfBlocksError, match="only 2 are free and 0 can be evicted"):
        cache.acquire(stream("a", 48), A)
    handle = start(cache, stream("b", 96), B)
    assert len(handle.block_table) == 6
    finish(cache, handle)


@settings(max_examples=80, deadline=None)
@given(
    floors=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    ceiling_blocks=st.none() | st.integers(4, 16),
    requests=st.lists(REQUESTS, max_size=10),
    held=st.lists(REQUESTS, max_size=2),
    namespace=st.sampled_from(TENANTS[:4]),
)
def test_what_an_error_says_can_be_had_can_be_had_and_no_block_more(
    floors: list[int],
    ceiling_blocks: int | None,
    requests: list[tuple[Namespace, list[int], int]],
    held: list[tuple[Namespace, list[int], int]],
    namespace: Namespace,
) -> None:
    quotas = {
        tenant.tenant: TenantQuota(floor_blocks=floor) for tenant, floor in zip(TENANTS, floors, strict=False)
    }
    if ceiling_blocks is not None:
        quotas[D.tenant] = TenantQuota(ceiling_blocks=ceiling_blocks)
    cache = PrefixCache(num_blocks=16, block_size=4, quotas=quotas)
    serve(cache, requests)
    for owner, prompt, num_public in held:
        try:
            start(cache, prompt, owner, num_public_tokens=min(num_public, len(prompt)))
        except (OutOfBlocksError, QuotaExceededError):
            cache.check()
    num_to_be_had = []
    for num_blocks in range(17, 0, -1):
        before = observed(cache)
        try:
            handle = start(cache, stream("a", 4 * num_blocks), namespace)
        except OutOfBlocksError as error:
            num_to_be_had.append(error.num_free + error.num_idle)
        except QuotaExceededError as error:
            num_to_be_had.append(error.ceiling_blocks - error.num_held + error.num_idle)
        else:
            assert {num_blocks} == set(num_to_be_had[-1:])
            assert len(handle.block_table) == num_blocks
            return
        assert observed(cache) == before
    assert num_to_be_had[-1] == 0


def test_tenants_that_hold_nothing_are_forgotten_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefixcache.quota.MAX_REMEMBERED_ACCOUNTS", 100)
    cache = PrefixCache(num_blocks=64)
    cache.set_quota("promised", TenantQuota(ceiling_blocks=60))
    run(cache, stream("a", 32), A)
    cache.pin(stream("a", 32), A)
    run(cache, stream("b", 32), B, num_public_tokens=32)
    live = start(cache, stream("b", 40), C)
    for number in range(300):
        run(cache, stream("s", 8), Namespace("model", f"passer-by {number}"))
    cache.check()

    known = cache.tenants()
    assert len(known) <= 2 * (64 + 4)  # twice as many as may hold something
    assert {"promised", A.tenant, B.tenant, C.tenant} <= set(known)
    assert cache.usage(A.tenant).num_requests == 1
    with pytest.raises(UnknownTenantError):
        cache.usage("passer-by 0")
    finish(cache, live)
    cache.check()
    # One that was forgotten is as good as new.
    run(cache, stream("a", 32), Namespace("model", "passer-by 0"))
    cache.check()
    assert cache.usage("passer-by 0").num_requests == 1


def test_who_only_reads_what_is_public_is_not_forgotten_while_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefixcache.quota.MAX_REMEMBERED_ACCOUNTS", 30)
    cache = PrefixCache(num_blocks=256)
    readers = [Namespace("model", f"reader {number}", is_publisher=True) for number in range(20)]
    live = [start(cache, stream("b", 32), reader, num_public_tokens=32) for reader in readers]
    for handle in live:
        cache.publish(handle, 32)  # one block less of its own: most of them pay for nothing now
    for number in range(40):
        run(cache, stream("s", 8), Namespace("model", f"passer-by {number}"))
    for handle in live:
        cache.extend(handle, X)
        cache.check()
    assert {reader.tenant for reader in readers} <= set(cache.tenants())


def test_the_default_quota_bounds_tenants_that_nobody_has_heard_of():
    cache = PrefixCache(num_blocks=64)
    run(cache, stream("a", 32), A)
    cache.set_quota(B.tenant, TenantQuota(ceiling_blocks=40))
    cache.set_default_quota(TenantQuota(ceiling_blocks=3))
    cache.check()
    for namespace, ceiling in ((A, 3), (C, 3), (B, 40)):
        with pytest.raises(QuotaExceededError) as caught:
            start(cache, stream("x", 41 * 16), namespace)
        assert caught.value.ceiling_blocks == ceiling
    cache.set_quota(B.tenant, None)
    cache.set_default_quota(TenantQuota(ceiling_blocks=5))
    assert cache.usage(A.tenant).ceiling_blocks == cache.usage(B.tenant).ceiling_blocks == 5
    cache.set_quota(B.tenant, TenantQuota())
    assert cache.usage(B.tenant).ceiling_blocks is None
    cache.set_default_quota(TenantQuota())
    run(cache, stream("a", 160), C)
    cache.check()


def test_a_default_floor_is_promised_to_nobody():
    with pytest.raises(InvalidArgumentError, match="cannot be promised"):
        PrefixCache(num_blocks=64).set_default_quota(TenantQuota(floor_blocks=1))


def test_a_default_quota_lets_tenants_be_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("prefixcache.quota.MAX_REMEMBERED_ACCOUNTS", 100)
    cache = PrefixCache(num_blocks=64)
    cache.set_default_quota(TenantQuota(ceiling_blocks=4))
    for number in range(1000):
        run(cache, stream("s", 8), Namespace("model", f"passer-by {number}"))
    assert len(cache.tenants()) <= 2 * 64
    cache.check()
    with pytest.raises(QuotaExceededError):  # one that was forgotten is still bounded
        start(cache, stream("x", 5 * 16), Namespace("model", "passer-by 0"))
