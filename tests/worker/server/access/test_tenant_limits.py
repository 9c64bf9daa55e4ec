"""Limits of tenants: the file that has them, and who is let in under them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import TenantQuota
from prefixcache_worker.errors import InvalidRequestError, RateLimitedError, TooManyRequestsError
from prefixcache_worker.server.access import admission as admission_module
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.access.tenant_limits import TenantLimits, TenantTable, parse_tenant_table


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class NoQuotas:
    """Of a worker whose limits bound no blocks."""

    async def keep_up(self) -> None:
        pass


def caller(tenant: str = "shop", **limits: Any) -> Caller:
    return Caller(tenant=tenant, role=Role.USER, limits=TenantLimits(**limits))


def admission(clock: Clock) -> Admission:
    return Admission(NoQuotas(), clock=clock)  # type: ignore[arg-type]


@asynccontextmanager
async def request(door: Admission, who: Caller):
    async with door.request(who, (), method="Generate") as record:
        yield record


async def begins(door: Admission, who: Caller) -> bool:
    """Whether a request is taken that ends at once."""
    try:
        async with request(door, who):
            return True
    except RateLimitedError:
        return False


def test_a_named_tenant_differs_from_the_default_where_it_says_so():
    table = parse_tenant_table(
        """
        [default]
        requests_per_minute = 60
        max_live_requests = 4
        max_priority = 0

        [tenants.shop]
        requests_per_minute = 600.5
        burst_requests = 20
        floor_blocks = 100
        ceiling_blocks = 1000

        [tenants."night jobs"]
        max_live_requests = "unlimited"
        max_priority = -10
        max_cache_priority = 0
        max_pinned_blocks = 0
        """
    )
    assert table.limits_of("anyone") == TenantLimits(
        requests_per_minute=60, max_live_requests=4, max_priority=0
    )
    assert table.limits_of("shop") == TenantLimits(
        requests_per_minute=600.5,
        burst_requests=20,
        max_live_requests=4,
        max_priority=0,
        floor_blocks=100,
        ceiling_blocks=1000,
    )
    assert table.limits_of("shop").quota == TenantQuota(floor_blocks=100, ceiling_blocks=1000)
    assert table.limits_of("night jobs") == TenantLimits(
        requests_per_minute=60, max_priority=-10, max_cache_priority=0, max_pinned_blocks=0
    )
    assert parse_tenant_table("") == TenantTable()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[default", "it is not valid TOML"),
        ("[tenant.shop]", "unknown key 'tenant'; known are default and tenants"),
        ("tenants = 3", "tenants is not a table"),
        ("default = 3", "default is not a table"),
        ("[tenants]\nshop = 3", "tenants.shop is not a table"),
        ("[tenants.'größe']", "no tenant is called 'größe': a name is 1 to 128 printable ASCII characters"),
        ("[tenants.'']", "no tenant is called ''"),
        ("[tenants.a]\nmax_priority = -101", "max_priority is -101; give a whole number of at least -100"),
        ("[default]\nmax_live = 3", "default: unknown key 'max_live'; known are requests_per_minute"),
        (
            "[tenants.a]\nrequests_per_minute = 0",
            "tenants.a: requests_per_minute is 0; give a number above 0",
        ),
        ("[tenants.a]\nrequests_per_minute = nan", "tenants.a: requests_per_minute is nan; give"),
        ("[tenants.a]\nrequests_per_minute = inf", "tenants.a: requests_per_minute is inf; give"),
        ("[tenants.a]\nrequests_per_minute = true", "requests_per_minute is True; give a number above 0"),
        ("[tenants.a]\nmax_live_requests = 0", "max_live_requests is 0; give a whole number of at least 1"),
        ("[tenants.a]\nmax_live_requests = 1.5", "max_live_requests is 1.5; give a whole number"),
        ("[tenants.a]\nmax_live_requests = 'none'", "max_live_requests is 'none'; give a whole number"),
        ("[tenants.a]\nfloor_blocks = 'unlimited'", "floor_blocks is 'unlimited'; give a whole number"),
        ("[tenants.a]\nfloor_blocks = 5\nceiling_blocks = 4", "ceiling_blocks is 4; give at least .*, 5"),
        ("[default]\nfloor_blocks = 5", "floor_blocks cannot be promised to every tenant"),
    ],
)
def test_a_broken_file_is_told_what_is_wrong(text: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        parse_tenant_table(text)


async def test_a_burst_and_then_the_rate():
    clock = Clock()
    door, who = admission(clock), caller(requests_per_minute=6, burst_requests=2)
    assert [await begins(door, who) for _ in range(3)] == [True, True, False]
    clock.now += 9.99
    assert not await begins(door, who)
    clock.now += 0.01
    assert [await begins(door, who) for _ in range(2)] == [True, False]
    clock.now += 3600
    assert [await begins(door, who) for _ in range(3)] == [True, True, False], "no more is saved up"


async def test_without_a_burst_a_minutes_requests_may_come_at_once():
    door = admission(Clock())
    assert [await begins(door, caller(requests_per_minute=3)) for _ in range(4)] == [True] * 3 + [False]
    slow = caller("slow", requests_per_minute=0.5)
    assert [await begins(door, slow) for _ in range(2)] == [True, False]


async def test_the_refusal_tells_when_it_will_be_taken():
    clock = Clock()
    door, who = admission(clock), caller(requests_per_minute=7, burst_requests=1)
    assert await begins(door, who)
    clock.now += 2
    with pytest.raises(RateLimitedError, match="tenant 'shop' may send 7 requests a minute") as caught:
        async with request(door, who):
            pass
    assert caught.value.retry_seconds == pytest.approx(60 / 7 - 2)
    clock.now += caught.value.retry_seconds
    assert await begins(door, who)


async def test_tenants_do_not_use_up_each_others_rate():
    door = admission(Clock())
    assert await begins(door, caller("a", requests_per_minute=1))
    assert not await begins(door, caller("a", requests_per_minute=1))
    assert await begins(door, caller("b", requests_per_minute=1))


@given(
    requests_per_minute=st.floats(0.1, 10_000),
    burst=st.integers(1, 50),
    waits=st.lists(st.floats(0, 30), max_size=200),
)
def test_no_more_than_the_burst_and_the_rate_are_ever_taken(
    requests_per_minute: float, burst: int, waits: list[float]
):
    """In every window: at most the burst and what the rate allows; and none is refused without need."""

    async def run() -> None:
        clock = Clock()
        door = admission(clock)
        who = caller(requests_per_minute=requests_per_minute, burst_requests=burst)
        taken: list[float] = []
        tokens, last = float(burst), clock.now  # the textbook's token bucket
        for wait in waits:
            clock.now += wait
            tokens = min(burst, tokens + (clock.now - last) * requests_per_minute / 60)
            last = clock.now
            is_taken = await begins(door, who)
            if abs(tokens - 1) > 1e-6:
                assert is_taken == (tokens > 1)
            if is_taken:
                tokens -= 1
                taken.append(clock.now)
        for first in range(len(taken)):
            for end in range(first, len(taken)):
                allowed = burst + (taken[end] - taken[first]) * requests_per_minute / 60
                assert end - first + 1 <= allowed + 1e-3

    asyncio.run(run())


async def test_so_many_requests_live_at_the_same_time():
    door, who = admission(Clock()), caller(max_live_requests=2)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(request(door, who))
        with pytest.raises(TooManyRequestsError, match="tenant 'shop' may have 2 requests that run or wait"):
            await stack.enter_async_context(request(door, who))
        await stack.enter_async_context(request(door, caller("other", max_live_requests=2)))
        assert (door.num_live("shop"), door.num_live("other")) == (2, 1)
    assert (door.num_live("shop"), door.num_live("other")) == (0, 0)
    async with request(door, who):
        pass


async def test_however_it_ends_a_request_lives_no_more():
    door, who = admission(Clock()), caller(max_live_requests=1)
    for error in (ValueError("x"), InvalidRequestError("n", "bad"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with request(door, who):
                raise error
        assert door.num_live("shop") == 0


async def test_a_refused_request_counts_for_nothing():
    clock = Clock()
    door, who = admission(clock), caller(requests_per_minute=60, burst_requests=2, max_live_requests=1)
    async with request(door, who):
        for _ in range(5):  # too many at a time: the burst is not used up
            with pytest.raises(TooManyRequestsError):
                async with request(door, who):
                    pass
    async with request(door, who):
        pass
    for _ in range(5):  # too fast: none of them lives
        assert not await begins(door, who)
    assert door.num_live("shop") == 0
    clock.now += 1
    assert await begins(door, who), "nor did they make the wait longer"


async def test_new_limits_count_at_once():
    clock = Clock()
    door = admission(clock)
    for _ in range(10):
        assert await begins(door, caller(requests_per_minute=10))
    assert not await begins(door, caller(requests_per_minute=10))
    assert await begins(door, caller())
    assert await begins(door, caller(requests_per_minute=10, burst_requests=11))
    clock.now += 0.11  # a higher rate makes up for what was used under the lower one
    assert await begins(door, caller(requests_per_minute=600, burst_requests=11))
    with pytest.raises(RateLimitedError) as caught:  # nor does a smaller burst lock anybody out for long
        async with request(door, caller(requests_per_minute=6, burst_requests=1)):
            pass
    assert caught.value.retry_seconds == pytest.approx(10)


async def test_a_million_names_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission_module, "MIN_REMEMBERED_BURSTS", 8)
    clock = Clock()
    door = admission(clock)
    busy = caller("busy", requests_per_minute=1)
    assert await begins(door, busy)
    for i in range(2000):
        clock.now += 0.001
        assert await begins(door, caller(f"t{i}", requests_per_minute=60 / 0.05))  # rested after 0.05 s
        assert len(door._bursts) <= 120
    assert not await begins(door, busy), "who has to wait is not forgotten"
    assert not door._num_live
