"""Wrong calls: a typed error that names the numbers, and nothing is changed."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cache_runs import NAMESPACE, run, start
from support.cache_state import observed
from support.token_streams import stream

from prefixcache import (
    POLICIES,
    CacheHandle,
    ForeignHandleError,
    HandleReleasedError,
    InvalidArgumentError,
    Namespace,
    NotCachedError,
    NotPublisherError,
    OutOfBlocksError,
    PendingCopiesError,
    Pin,
    PinExpiredError,
    PinLimitError,
    PrefixCache,
    PrefixCacheError,
    QuotaExceededError,
    SnapshotMismatchError,
    TenantQuota,
    UnknownTenantError,
)

X = [9999]
BOUNDED = Namespace("model", "bounded")
READER = Namespace("model", "reader")


@contextmanager
def refused(cache: PrefixCache, error: type[PrefixCacheError], message: str) -> Iterator[None]:
    """What is called in here raises exactly this error, and changes nothing that can be seen."""
    before = observed(cache)
    with pytest.raises(PrefixCacheError) as caught:
        yield
    assert type(caught.value) is error
    assert re.search(message, str(caught.value)), str(caught.value)
    assert observed(cache) == before
    cache.check()


@dataclass
class Scene:
    """A cache in which everything is in use, and what can be used wrongly."""

    cache: PrefixCache
    handle: CacheHandle
    """Live, with a published beginning and a tail."""
    forked: CacheHandle
    copying: CacheHandle
    """Its copy is pending."""
    released: CacheHandle
    foreign: CacheHandle
    pin: Pin
    ended_pin: Pin
    expired_pin: Pin
    foreign_pin: Pin


@pytest.fixture
def scene() -> Scene:
    now = [0.0]
    cache = PrefixCache(
        num_blocks=24,
        policy="lru",
        quotas={"bounded": TenantQuota(floor_blocks=2, ceiling_blocks=4), "unused": TenantQuota()},
        max_pinned_share=0.25,
        clock=lambda: now[0],
    )
    run(cache, stream("s", 40), num_public_tokens=32)
    run(cache, stream("b", 20), BOUNDED)
    released = run(cache, stream("a", 40))
    handle = start(cache, stream("a", 40) + stream("c", 8))
    cache.publish(handle, 48)
    forked = cache.fork(handle)
    copying = cache.acquire(stream("a", 40), NAMESPACE)
    other = PrefixCache(num_blocks=8)
    run(other, stream("a", 16))
    pin = cache.pin(handle.token_ids, NAMESPACE)
    expired_pin = cache.pin(stream("a", 16), NAMESPACE, ttl_seconds=10)
    ended_pin = cache.pin(stream("a", 32), NAMESPACE)
    cache.end_pin(ended_pin)
    now[0] = 10.0
    scene = Scene(
        cache=cache,
        handle=handle,
        forked=forked,
        copying=copying,
        released=released,
        foreign=start(other, stream("a", 40)),
        pin=pin,
        ended_pin=ended_pin,
        expired_pin=expired_pin,
        foreign_pin=other.pin(stream("a", 16), NAMESPACE),
    )
    assert copying.copies
    assert cache.stats().num_live_unshared == 9
    return scene


HANDLE_CALLS: list[Callable[[PrefixCache, CacheHandle], object]] = [
    lambda cache, handle: cache.release(handle),
    lambda cache, handle: cache.extend(handle, X),
    lambda cache, handle: cache.extend(handle, []),
    lambda cache, handle: cache.publish(handle, 0),
    lambda cache, handle: cache.fork(handle),
    lambda cache, handle: cache.complete_copies(handle),
]


@pytest.mark.parametrize("call", HANDLE_CALLS)
def test_a_handle_released_or_foreign(
    scene: Scene, call: Callable[[PrefixCache, CacheHandle], object]
) -> None:
    cache = scene.cache
    with refused(cache, HandleReleasedError, "has been released already; acquire a new one"):
        call(cache, scene.released)
    with refused(cache, ForeignHandleError, "belongs to another cache; use the one that acquired it"):
        call(cache, scene.foreign)


TOKEN_CALLS: list[Callable[[Scene, Any], object]] = [
    lambda scene, tokens: scene.cache.acquire(tokens, NAMESPACE),
    lambda scene, tokens: scene.cache.extend(scene.handle, tokens),
    lambda scene, tokens: scene.cache.match(tokens, NAMESPACE),
    lambda scene, tokens: scene.cache.explain(tokens, NAMESPACE),
    lambda scene, tokens: scene.cache.pin(tokens, NAMESPACE),
]
NO_TOKENS = [
    ([1, -1], r"token id -1 is outside 0\.\.4294967295"),
    ((2**32,), "token id 4294967296 is outside"),
    (np.array([3, -7], dtype=np.int64), "token id -7 is outside"),
    (np.array([2**64 - 1], dtype=np.uint64), "token id 18446744073709551615 is outside"),
    ([1.0], "integers in one dimension.*'float'"),
    (np.array([1.5, 2.5]), "integers in one dimension.*'float'"),
    (np.zeros((2, 2), dtype=np.int32), "integers in one dimension.*'list'"),
    (["5"], "integers in one dimension.*'str'"),
    ([None], "integers in one dimension.*'NoneType'"),
    ("5 6", "integers in one dimension"),
    (None, "integers in one dimension"),
    (5, "integers in one dimension"),
    (b"1234567", "packed tokens have 7 bytes; give a multiple of 4"),
    (bytearray(5), "packed tokens have 5 bytes; give a multiple of 4"),
]


@pytest.mark.parametrize("call", TOKEN_CALLS)
def test_what_are_no_tokens(scene: Scene, call: Callable[[Scene, Any], object]) -> None:
    for tokens, message in NO_TOKENS:
        with refused(scene.cache, InvalidArgumentError, message):
            call(scene, tokens)
    with refused(scene.cache, InvalidArgumentError, "token id -1 is outside"):
        call(scene, (token for token in (1, -1)))  # can be read once only


def test_a_prompt_that_is_empty_or_for_which_there_is_no_room(scene: Scene) -> None:
    cache = scene.cache
    with refused(cache, InvalidArgumentError, "the prompt is empty; give at least 1 token"):
        cache.acquire([], NAMESPACE)
    with refused(cache, OutOfBlocksError, "need 19 blocks, but only 15 are free and 3 can be evicted"):
        cache.acquire(stream("d", 16 * 19), NAMESPACE)
    with refused(cache, OutOfBlocksError, "need 19 blocks, but only 15 are free and 3 can be evicted"):
        cache.acquire(stream("d", 16 * 19), Namespace("model", "newcomer"))
    with refused(cache, OutOfBlocksError, "need 20 blocks, but only 15 are free and 3 can be evicted"):
        cache.extend(scene.handle, stream("d", 320))


def test_more_than_a_tenant_may_hold(scene: Scene) -> None:
    message = "tenant 'bounded' needs 5 blocks, but holds 2 of at most 4, of which 2 can be evicted"
    with refused(scene.cache, QuotaExceededError, message):
        scene.cache.acquire(stream("d", 80), BOUNDED)
    handle = start(scene.cache, stream("d", 64), BOUNDED)
    message = "needs 1 blocks, but holds 4 of at most 4, of which 0 can be evicted"
    with refused(scene.cache, QuotaExceededError, message):
        scene.cache.extend(handle, X)


@pytest.mark.parametrize("number", [-1, 41])
def test_a_public_boundary_outside_the_prompt(scene: Scene, number: int) -> None:
    cache = scene.cache
    for call in (cache.acquire, cache.match, cache.explain, cache.pin):
        with refused(cache, InvalidArgumentError, f"num_public_tokens is {number}; give 0 to 40"):
            call(stream("s", 40), NAMESPACE, num_public_tokens=number)


@pytest.mark.parametrize("use_cache", [True, False])
def test_public_without_the_role(scene: Scene, use_cache: bool) -> None:
    for namespace in (READER, BOUNDED):
        message = f"32 tokens are declared public, but the namespace of tenant {namespace.tenant!r} is no"
        with refused(scene.cache, NotPublisherError, message):
            scene.cache.acquire(stream("s", 40), namespace, num_public_tokens=32, use_cache=use_cache)


def test_fewer_cached_tokens_than_none(scene: Scene) -> None:
    with refused(scene.cache, InvalidArgumentError, "max_cached_tokens is -1; give at least 0, or None"):
        scene.cache.acquire(stream("a", 40), NAMESPACE, max_cached_tokens=-1)


@pytest.mark.parametrize("seconds", [0, -1.5, nan, -inf])
def test_promises_that_have_ended_before_they_begin(scene: Scene, seconds: float) -> None:
    with refused(scene.cache, InvalidArgumentError, f"priority_seconds is {seconds}; give more than 0"):
        scene.cache.acquire(stream("a", 40), NAMESPACE, priority=1, priority_seconds=seconds)
    with refused(scene.cache, InvalidArgumentError, f"ttl_seconds is {seconds}; give more than 0"):
        scene.cache.pin(stream("a", 40), NAMESPACE, ttl_seconds=seconds)


@pytest.mark.parametrize("include_tail", [True, False])
def test_publishing_what_is_not_there(scene: Scene, include_tail: bool) -> None:
    for number in (-1, 49):
        message = f"num_written_tokens is {number}; the handle has room for 48"
        with refused(scene.cache, InvalidArgumentError, message):
            scene.cache.publish(scene.handle, number, include_tail=include_tail)


def test_going_on_before_a_copy_is_executed(scene: Scene) -> None:
    target = scene.copying.copies[0].target
    message = f"the copy to block {target} is pending; .* before publishing 40 tokens"
    with refused(scene.cache, PendingCopiesError, message):
        scene.cache.publish(scene.copying, 40, include_tail=True)
    with refused(scene.cache, PendingCopiesError, "1 copies are pending; execute and complete them"):
        scene.cache.fork(scene.copying)


def test_negative_numbers(scene: Scene) -> None:
    with refused(scene.cache, InvalidArgumentError, "num_blocks to evict is -1; give 0 or more"):
        scene.cache.evict(-1)
    with refused(scene.cache, InvalidArgumentError, "max_depth is -2; give 0 for all, or more"):
        scene.cache.dump(-2)


def test_pinning_what_cannot_be_pinned(scene: Scene) -> None:
    cache = scene.cache
    for num_tokens in (0, 15):
        with refused(cache, InvalidArgumentError, f"the prefix has {num_tokens} tokens; a pin needs 16"):
            cache.pin(stream("a", num_tokens), NAMESPACE)
    with refused(cache, NotCachedError, "1 of the prefix's 2 blocks are cached"):
        cache.pin(stream("a", 16) + stream("d", 16), NAMESPACE)
    with refused(cache, NotCachedError, "0 of the prefix's 2 blocks are cached"):
        cache.pin(stream("a", 32), READER)
    run(cache, stream("d", 64))
    message = "pinning needs 4 more blocks, but 3 of at most 6 are pinned"
    with refused(cache, PinLimitError, message):
        cache.pin(stream("d", 64), NAMESPACE)
    cache.pin(stream("d", 48), NAMESPACE)
    with refused(cache, PinLimitError, "pinning needs 2 more blocks, but 6 of at most 6 are pinned"):
        cache.pin(stream("s", 32), Namespace("model", "newcomer"))


def test_pins_that_have_ended_or_are_foreign(scene: Scene) -> None:
    cache = scene.cache
    for call in (cache.renew_pin, cache.end_pin):
        for pin in (scene.ended_pin, scene.expired_pin):
            with refused(cache, PinExpiredError, "the pin has ended; pin the prefix again"):
                call(pin)
        with refused(cache, PinExpiredError, "the pin belongs to another cache; use the one that made it"):
            call(scene.foreign_pin)


def test_what_this_cache_has_not_or_cannot_take(scene: Scene, tmp_path: Path) -> None:
    with refused(scene.cache, InvalidArgumentError, "the cache has no event log; make it with events="):
        scene.cache.event_state()
    scene.cache.save(tmp_path / "snapshot")
    with refused(scene.cache, InvalidArgumentError, r"has \d+ nodes; reset it before restoring"):
        scene.cache.restore(tmp_path / "snapshot")
    with refused(scene.cache, SnapshotMismatchError, "the snapshot's model is '', the cache's is 'other'"):
        scene.cache.restore(tmp_path / "snapshot", model="other")


def test_tenants_nobody_has_named(scene: Scene) -> None:
    for tenant in ("nobody", "", "Tenant", "reader"):
        with refused(scene.cache, UnknownTenantError, f"tenant {tenant!r} is none of the 3 known"):
            scene.cache.usage(tenant)


def test_floors_above_the_pool(scene: Scene) -> None:
    for tenant, floor_blocks in (("reader", 23), ("bounded", 25), ("unused", 23)):
        message = f"would sum to 25 blocks, but the pool has 24; lower the floor of {tenant!r}"
        with refused(scene.cache, InvalidArgumentError, message):
            scene.cache.set_quota(tenant, TenantQuota(floor_blocks=floor_blocks))
    with pytest.raises(InvalidArgumentError, match="would sum to 9 blocks, but the pool has 8"):
        PrefixCache(num_blocks=8, quotas={tenant: TenantQuota(floor_blocks=3) for tenant in "abc"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"floor_blocks": -1}, "floor_blocks is -1; give 0 or more"),
        ({"ceiling_blocks": 0}, "ceiling_blocks is 0; give at least 1"),
        ({"ceiling_blocks": -4}, "ceiling_blocks is -4; give at least 1"),
        ({"floor_blocks": 3, "ceiling_blocks": 2}, "ceiling_blocks is 2; .* not less than the floor of 3"),
    ],
)
def test_quotas_out_of_bounds(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TenantQuota(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0; a pool needs at least 1 block"),
        ({"num_blocks": -8}, "num_blocks is -8"),
        *[
            ({"block_size": size}, f"block_size is {size}; give a power of two")
            for size in (0, -1, -16, 3, 12, 24, 48)
        ],
        ({"max_pinned_share": -0.1}, "max_pinned_share is -0.1; give 0 to 1"),
        ({"max_pinned_share": 1.5}, "max_pinned_share is 1.5; give 0 to 1"),
        ({"max_pinned_share": nan}, "max_pinned_share is nan; give 0 to 1"),
        ({"history_capacity": -1}, "history_capacity is -1; give 0 or more"),
        *[
            ({"public_after_tenants": number}, f"public_after_tenants is {number}; give at least 2, or None")
            for number in (1, 0, -2)
        ],
        *[
            ({"policy": policy}, f"policy is {policy!r}; give one of {', '.join(POLICIES)}")
            for policy in ("mru", "LRU", "", "lru ")
        ],
    ],
)
def test_a_cache_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        PrefixCache(**{"num_blocks": 8, **arguments})
