"""Pins: what they keep, for how long, and how they end."""

import random
from math import inf

import pytest
from support.cache_driver import CacheDriver
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.cache_settings import CacheSettings
from support.cache_state import observed
from support.chooser import Chooser
from support.token_streams import stream

from prefixcache import (
    InvalidArgumentError,
    Namespace,
    NotCachedError,
    OutOfBlocksError,
    PinExpiredError,
    PinLimitError,
    PrefixCache,
    TenantQuota,
)

OTHER = Namespace("model", "other", is_publisher=True)
X = [9999]
S = stream("s", 64)


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> PrefixCache:
    """Four of its 20 blocks hold the prefix S."""
    cache = PrefixCache(num_blocks=20, clock=clock)
    run(cache, S)
    return cache


# What a pin keeps


def test_pinned_blocks_are_not_evicted(cache: PrefixCache) -> None:
    pin = cache.pin(S, NAMESPACE)
    cache.check()
    assert (pin.num_tokens, pin.block_ids, pin.expires_at) == (64, list(cache.dump()[0].block_ids), inf)
    assert cache.evict(20) == 0
    with pytest.raises(OutOfBlocksError, match="need 17 blocks, but only 16 are free and 0 can be evicted"):
        cache.acquire(stream("a", 17 * 16), NAMESPACE)
    assert num_matched(cache, S + X) == 64
    cache.end_pin(pin)
    cache.check()
    assert cache.evict(20) == 4


def test_pinned_blocks_are_idle_but_not_available(cache: PrefixCache) -> None:
    cache.pin(stream("s", 32), NAMESPACE)
    stats = cache.stats()
    assert (stats.num_free, stats.num_idle, stats.num_live, stats.num_pinned) == (16, 4, 0, 2)
    assert cache.num_available_blocks == 18
    handle = start(cache, stream("s", 16) + X)
    stats = cache.stats()
    assert (stats.num_idle, stats.num_live, stats.num_pinned) == (3, 2, 2)
    finish(cache, handle)


def test_only_whole_blocks_are_kept(cache: PrefixCache) -> None:
    run(cache, S + stream("t", 8))
    pin = cache.pin(S[:40], NAMESPACE)
    assert pin.num_tokens == 32
    cache.evict(20)
    assert num_matched(cache, S + X) == 32


def test_what_is_behind_a_pinned_prefix_comes_and_goes(cache: PrefixCache) -> None:
    cache.pin(S, NAMESPACE)
    run(cache, S + stream("a", 32))
    assert cache.evict(20) == 2
    cache.check()
    assert num_matched(cache, S + stream("a", 32)) == 64


def test_a_prefix_can_be_pinned_while_it_is_being_prefilled(cache: PrefixCache, clock: Clock) -> None:
    """The pin goes on being found at its end, though the run goes on behind it."""
    handle = start(cache, stream("a", 64))
    cache.publish(handle, 32)
    pin = cache.pin(stream("a", 32), NAMESPACE, ttl_seconds=10)
    cache.publish(handle, 64)
    cache.check()
    clock.seconds += 5
    cache.release(start(cache, stream("a", 32) + X))
    assert pin.expires_at == clock.seconds + 10
    clock.seconds += 10
    cache.check()
    assert cache.pins() == []


def test_a_public_prefix_is_pinned_for_everybody(cache: PrefixCache) -> None:
    run(cache, stream("p", 32), num_public_tokens=32)
    cache.pin(stream("p", 32), OTHER)
    cache.evict(20)
    assert num_matched(cache, stream("p", 32) + X) == 32


def test_pinned_blocks_are_the_tenants(cache: PrefixCache) -> None:
    cache.set_quota("tenant", TenantQuota(ceiling_blocks=5))
    pin = cache.pin(S, NAMESPACE)
    assert cache.usage("tenant").num_charged_blocks == 4
    with pytest.raises(Exception, match="needs 2 blocks, but holds 4 of at most 5, of which 0"):
        cache.acquire(stream("a", 32), NAMESPACE)
    cache.end_pin(pin)
    finish(cache, start(cache, stream("a", 32)))


# How long


def test_a_pin_ends_when_its_time_is_over(cache: PrefixCache, clock: Clock) -> None:
    pin = cache.pin(S, NAMESPACE, ttl_seconds=30)
    assert pin.expires_at == 130
    clock.seconds = 129.9
    assert cache.evict(20) == 0
    assert cache.pins() == [pin]
    clock.seconds = 130
    assert cache.stats().num_pinned == 0
    assert pin.is_ended
    cache.check()
    with pytest.raises(PinExpiredError):
        cache.renew_pin(pin)
    assert cache.evict(20) == 4


@pytest.mark.parametrize("operation", ["acquire", "extend", "evict", "pin"])
def test_what_a_pin_kept_can_be_had_as_soon_as_its_time_is_over(clock: Clock, operation: str) -> None:
    """Whoever comes first finds out that it is."""
    cache = PrefixCache(num_blocks=6, clock=clock)
    run(cache, S[:48])
    run(cache, stream("a", 32))
    handle = start(cache, X)
    cache.pin(S[:48], NAMESPACE, ttl_seconds=30)
    clock.seconds += 30
    match operation:
        case "acquire":
            assert len(cache.acquire(stream("b", 80), NAMESPACE).block_table) == 5
        case "extend":
            cache.extend(handle, stream("b", 80))
            assert len(handle.block_table) == 6
        case "evict":
            assert cache.evict(6) == 5
        case "pin":
            assert cache.pin(stream("a", 32), NAMESPACE).num_tokens == 32
    cache.check()


@pytest.mark.parametrize(
    "prompt", [S + X, S + stream("a", 40), S], ids=["one token behind", "more behind", "the prefix itself"]
)
def test_a_hit_renews_it(cache: PrefixCache, clock: Clock, prompt: list[int]) -> None:
    pin = cache.pin(S, NAMESPACE, ttl_seconds=30)
    clock.seconds = 120
    cache.release(start(cache, prompt))
    assert pin.expires_at == 150
    clock.seconds = 149
    assert cache.evict(20) == 0


def test_less_or_somebody_elses_is_no_hit(cache: PrefixCache, clock: Clock) -> None:
    pin = cache.pin(S, NAMESPACE, ttl_seconds=30)
    clock.seconds = 120
    cache.release(start(cache, S[:48] + X))
    cache.release(start(cache, S[:-1] + X))  # as many tokens, but another last one
    cache.release(start(cache, S[:-1] + X + X))
    cache.release(start(cache, S + X, OTHER))
    cache.release(cache.acquire(S + X, NAMESPACE, use_cache=False))
    cache.match(S + X, NAMESPACE)
    assert pin.expires_at == 130


def test_a_hit_renews_all_pins_on_its_path(cache: PrefixCache, clock: Clock) -> None:
    short = cache.pin(S[:32], NAMESPACE, ttl_seconds=30)
    whole = cache.pin(S, NAMESPACE, ttl_seconds=20)
    again = cache.pin(S, NAMESPACE, ttl_seconds=25)
    cache.check()
    assert cache.pins() == [whole, again, short]
    clock.seconds = 110
    cache.release(start(cache, S[:48] + X))
    assert [pin.expires_at for pin in (short, whole, again)] == [140, 120, 125]
    cache.release(start(cache, S + X))
    assert [pin.expires_at for pin in (short, whole, again)] == [140, 130, 135]


def test_a_pin_can_be_renewed_by_hand(cache: PrefixCache, clock: Clock) -> None:
    pin = cache.pin(S, NAMESPACE, ttl_seconds=30)
    clock.seconds = 125
    cache.renew_pin(pin)
    assert pin.expires_at == 155
    cache.check()


def test_blocks_stay_until_the_last_of_their_pins_ends(cache: PrefixCache) -> None:
    short, whole = cache.pin(S[:32], NAMESPACE), cache.pin(S, NAMESPACE)
    assert cache.stats().num_pinned == 4
    cache.end_pin(whole)
    assert cache.stats().num_pinned == 2
    assert cache.evict(20) == 2
    cache.end_pin(short)
    assert cache.evict(20) == 2
    cache.check()


# Limits


@pytest.mark.parametrize(("share", "num_allowed"), [(0, 0), (0.19, 3), (0.2, 4), (1, 20)])
def test_only_a_share_of_the_pool_can_be_pinned(share: float, num_allowed: int) -> None:
    cache = PrefixCache(num_blocks=20, max_pinned_share=share)
    run(cache, stream("a", 20 * 16))
    if num_allowed:
        cache.pin(stream("a", num_allowed * 16), NAMESPACE)
        cache.pin(stream("a", 16), NAMESPACE)  # pinned already, so it takes no more
    if num_allowed < 20:
        before = observed(cache)
        words = f"needs {1} more blocks, but {num_allowed} of at most {num_allowed} are pinned"
        with pytest.raises(PinLimitError, match=words):
            cache.pin(stream("a", (num_allowed + 1) * 16), NAMESPACE)
        assert observed(cache) == before
    cache.check()
    assert cache.stats().num_pinned == num_allowed


def test_room_under_the_limit_comes_back_with_the_time(clock: Clock) -> None:
    cache = PrefixCache(num_blocks=8, max_pinned_share=0.5, clock=clock)
    run(cache, S)
    run(cache, stream("a", 64))
    cache.pin(S, NAMESPACE, ttl_seconds=30)
    with pytest.raises(PinLimitError):
        cache.pin(stream("a", 64), NAMESPACE)
    clock.seconds += 30
    assert cache.pin(stream("a", 64), NAMESPACE).num_tokens == 64


def test_what_is_not_cached_as_a_whole_cannot_be_pinned(cache: PrefixCache) -> None:
    before = observed(cache)
    with pytest.raises(NotCachedError, match="4 of the prefix's 5 blocks are cached"):
        cache.pin(S + stream("a", 16), NAMESPACE)
    with pytest.raises(NotCachedError, match="0 of the prefix's 4 blocks"):
        cache.pin(S, OTHER)
    with pytest.raises(NotCachedError, match="0 of the prefix's 4 blocks"):
        cache.pin(S, NAMESPACE, num_public_tokens=64)  # cached, but as private
    with pytest.raises(InvalidArgumentError, match="the prefix has 15 tokens; a pin needs 16"):
        cache.pin(S[:15], NAMESPACE)
    for ttl_seconds in (0, -1, float("nan")):
        with pytest.raises(InvalidArgumentError, match=f"ttl_seconds is {ttl_seconds}; give more than 0"):
            cache.pin(S, NAMESPACE, ttl_seconds=ttl_seconds)
    assert observed(cache) == before


# Ends


def test_a_pin_may_end_while_its_blocks_are_in_use(cache: PrefixCache) -> None:
    pin = cache.pin(S, NAMESPACE)
    handle = start(cache, S + X)
    table = list(handle.block_table)
    cache.end_pin(pin)
    cache.check()
    assert cache.evict(20) == 0
    assert handle.block_table == table
    finish(cache, handle)
    assert cache.evict(20) == 5
    cache.check()


def test_a_pin_ends_once(cache: PrefixCache) -> None:
    pin, other = cache.pin(S, NAMESPACE), cache.pin(S, NAMESPACE)
    cache.end_pin(pin)
    before = observed(cache)
    for operation in (cache.end_pin, cache.renew_pin):
        with pytest.raises(PinExpiredError, match="has ended; pin the prefix again"):
            operation(pin)
    assert observed(cache) == before
    assert cache.pins() == [other]


def test_the_pin_of_another_cache_is_refused(cache: PrefixCache) -> None:
    """Even of one whose blocks have the same ids."""
    twin = PrefixCache(num_blocks=20)
    run(twin, S)
    cache.pin(S, NAMESPACE)
    foreign = twin.pin(S, NAMESPACE)
    before = observed(cache), observed(twin)
    for operation in (cache.end_pin, cache.renew_pin):
        with pytest.raises(PinExpiredError, match="belongs to another cache"):
            operation(foreign)
    assert (observed(cache), observed(twin)) == before


def test_a_reset_ends_all_pins(cache: PrefixCache) -> None:
    pins = [cache.pin(S, NAMESPACE), cache.pin(S[:16], NAMESPACE, ttl_seconds=30)]
    handle = start(cache, S + X)
    cache.reset()
    cache.check()
    assert cache.pins() == []
    assert cache.stats().num_pinned == 0
    for pin in pins:
        assert pin.is_ended
        with pytest.raises(PinExpiredError):
            cache.end_pin(pin)
    cache.release(handle)
    assert cache.stats().num_free == 20
    run(cache, S)
    assert cache.pin(S, NAMESPACE).num_tokens == 64


@pytest.mark.parametrize("seed", range(8))
def test_under_any_traffic_a_pinned_prefix_matches_until_its_pin_ends(seed: int) -> None:
    """And then it goes when room is needed: at the end nothing is left."""
    draw = random.Random(seed)
    driver = CacheDriver(CacheSettings(num_blocks=24, max_pinned_share=1, policy=draw.choice(["lru", "arc"])))
    compared = driver.compared
    operations = ["pin", "serve", "serve", "acquire", "publish", "release", "end_pin", "evict"]
    for _ in range(150):
        driver.perform(draw.choice(operations), Chooser(draw.randint))
        compared.check()  # among others, that every pinned prefix matches
    for sequence in list(compared.model.sequences):
        compared.release(sequence)
    for pin in compared.cache.pins():
        compared.end_pin(pin)
    compared.evict(24)
    assert compared.cache.stats().num_free == 24


# What whoever keeps a book of pins needs to know


def test_a_pin_counts_the_prompts_that_begin_with_it(cache: PrefixCache) -> None:
    pin = cache.pin(S, NAMESPACE)
    run(cache, S + X)
    run(cache, S)  # all but its last token: the whole pin as well
    run(cache, S[:48] + X)
    cache.release(cache.acquire(S + X, NAMESPACE, use_cache=False))
    assert pin.num_hits == 2
    cache.release(cache.acquire(S + X, NAMESPACE, is_resumed=True))  # the same request again
    assert pin.num_hits == 2
    cache.check()


def test_a_renewed_pin_may_have_another_time(cache: PrefixCache, clock: Clock) -> None:
    pin = cache.pin(S, NAMESPACE, ttl_seconds=10)
    cache.renew_pin(pin, ttl_seconds=50)
    assert (pin.ttl_seconds, pin.expires_at) == (50, 150)
    with pytest.raises(InvalidArgumentError, match="ttl_seconds is 0; give more than 0"):
        cache.renew_pin(pin, ttl_seconds=0)
    assert (pin.ttl_seconds, pin.expires_at) == (50, 150)
    cache.check()
    clock.seconds += 50
    assert cache.pins() == []


def test_a_pin_may_begin_with_less_time_than_it_has_after_a_hit(cache: PrefixCache, clock: Clock) -> None:
    pin = cache.pin(S, NAMESPACE, ttl_seconds=30, seconds_left=5)
    assert pin.expires_at == 105
    clock.seconds += 4
    run(cache, S + X)
    assert pin.expires_at == 134
    with pytest.raises(InvalidArgumentError, match="seconds_left is -1; give more than 0"):
        cache.pin(S, NAMESPACE, seconds_left=-1)


def test_room_for_a_pin_can_be_asked_for_before_anything_is_computed(clock: Clock) -> None:
    cache = PrefixCache(num_blocks=8, max_pinned_share=0.5, clock=clock)
    run(cache, S[:32])
    cache.pin(S[:32], NAMESPACE, ttl_seconds=10)
    before = observed(cache)
    cached_ids = cache.require_pin_room(S, NAMESPACE)
    assert cached_ids == cache.match(S, NAMESPACE).block_ids
    with pytest.raises(PinLimitError, match="needs 3 more blocks, but 2 of at most 4"):
        cache.require_pin_room(S + stream("a", 16), NAMESPACE)
    with pytest.raises(PinLimitError, match="needs 4 more blocks"):
        cache.require_pin_room(S, OTHER)
    with pytest.raises(InvalidArgumentError, match="a pin needs 16"):
        cache.require_pin_room(S[:15], NAMESPACE)
    assert observed(cache) == before
    clock.seconds += 10
    assert cache.require_pin_room(S, OTHER) == []
