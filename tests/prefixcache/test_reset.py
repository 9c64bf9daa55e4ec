"""Resetting: everything cached is forgotten at once, and nobody who runs is disturbed."""

import random

import pytest
from support.cache_driver import OPERATION_WEIGHTS, CacheDriver
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.cache_settings import CacheSettings
from support.chooser import Chooser
from support.compared_cache import ComparedCache
from support.token_streams import stream

from prefixcache import POLICIES, BlockId, CacheCleared, EventLog, Namespace, PrefixCache, TenantQuota

OTHER = Namespace("model", "other", is_publisher=True)
X = [9999]


def test_nothing_is_found_any_more_and_all_that_is_not_held_is_free() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    run(cache, stream("b", 40), OTHER, num_public_tokens=40)
    held = start(cache, stream("a", 64) + X)
    cache.reset()
    cache.check()
    assert num_matched(cache, stream("a", 64) + X) == 0
    assert num_matched(cache, stream("b", 40) + X, OTHER) == 0
    stats = cache.stats()
    assert (stats.num_free, stats.num_idle, stats.num_live, stats.num_nodes) == (15, 0, 5, 0)
    assert cache.block_keys() == {}
    cache.release(held)
    cache.check()
    assert cache.stats().num_free == 20


def test_running_sequences_end_on_what_they_hold_and_publish_nothing() -> None:
    """One in prefill, one that waits for a copy, and one of two forks: all rows stay right."""
    compared = ComparedCache(CacheSettings(num_blocks=40, block_size=4))
    warm = compared.acquire([1] * 16, NAMESPACE)
    assert warm is not None
    compared.write(warm, 16)
    compared.publish(warm, 16, include_tail=True)
    compared.release(warm)
    prefilling = compared.acquire([1] * 8 + [2] * 8, NAMESPACE)
    copying = compared.acquire([1] * 14 + [3] * 8, NAMESPACE)
    forked = compared.acquire([1] * 8 + [4] * 3, NAMESPACE)
    assert prefilling is not None
    assert copying is not None
    assert forked is not None
    compared.write(prefilling, 12)
    compared.publish(prefilling, 12, include_tail=False)
    compared.write(forked, 11)
    twin = compared.fork(forked)
    assert twin is not None
    assert copying.handle.copies

    compared.reset()

    compared.check()
    for sequence in (prefilling, copying, forked, twin):
        compared.extend(sequence, [5] * 7)
        compared.check()
        compared.write(sequence, len(sequence.tokens))
        compared.publish(sequence, len(sequence.tokens), include_tail=True)
        compared.check()
        compared.release(sequence)
        compared.check()
    assert compared.cache.stats().num_free == 40
    assert compared.cache.match([1] * 16, NAMESPACE).num_tokens == 0


def test_sequences_that_start_afterwards_publish_again() -> None:
    cache = PrefixCache(num_blocks=20)
    old = start(cache, stream("a", 64))
    cache.publish(old, 32)
    cache.reset()
    new = start(cache, stream("a", 64))
    assert new.num_cached_tokens == 0
    finish(cache, new)
    finish(cache, old)
    assert num_matched(cache, stream("a", 64) + X) == 64
    assert (cache.stats().num_idle, cache.stats().num_free) == (4, 16)


def test_a_fork_of_an_old_sequence_publishes_nothing_either() -> None:
    cache = PrefixCache(num_blocks=20)
    old = start(cache, stream("a", 32))
    cache.reset()
    fork = cache.fork(old)
    finish(cache, fork)
    finish(cache, old)
    assert (cache.stats().num_free, cache.stats().num_nodes) == (20, 0)


def test_a_tail_that_was_cached_is_still_copied_before_it_is_written() -> None:
    """The sequence itself cannot know that nobody reads it any more."""
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 40))
    cache.publish(handle, 40, include_tail=True)
    cache.reset()
    (copy,) = cache.extend(handle, X)
    assert copy.num_slots == 8
    cache.check()
    cache.complete_copies(handle)
    cache.check()
    cache.release(handle)
    assert cache.stats().num_free == 20


def test_idle_blocks_are_taken_up_again_only_as_they_are_needed() -> None:
    """So a reset costs the same whatever is cached."""
    freed: list[BlockId] = []
    cache = PrefixCache(num_blocks=1000, on_free=freed.extend)
    run(cache, stream("a", 16 * 900))
    cache.reset()
    assert freed == []
    assert cache.stats().num_free == 1000
    handle = cache.acquire(stream("b", 16 * 300), NAMESPACE)
    cache.check()
    assert len(freed) == 200  # the other 100 were free before
    assert len(set(handle.block_table)) == 300
    cache.release(handle)
    cache.check()
    assert cache.stats().num_free == 1000


def test_blocks_that_are_held_are_not_given_to_anybody_until_they_are_released() -> None:
    cache = PrefixCache(num_blocks=8)
    run(cache, stream("a", 64))
    held = start(cache, stream("a", 48) + X)
    cache.reset()
    others = start(cache, stream("b", 64))
    assert set(others.block_table).isdisjoint(held.block_table)
    assert cache.num_available_blocks == 0
    cache.release(held)
    cache.check()
    assert cache.num_available_blocks == 4
    assert set(start(cache, stream("c", 64)).block_table).isdisjoint(others.block_table)


@pytest.mark.parametrize("num_resets", [1, 2, 5])
def test_many_resets_in_a_row_are_as_one(num_resets: int) -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    held = start(cache, stream("a", 64) + X)
    run(cache, stream("b", 32))
    for _ in range(num_resets):
        cache.reset()
        cache.check()
    assert (cache.stats().num_free, cache.stats().num_live) == (15, 5)
    run(cache, stream("c", 15 * 16))
    cache.reset()
    cache.release(held)
    assert cache.stats().num_free == 20
    run(cache, stream("d", 20 * 16))
    assert cache.stats().num_idle == 20


def test_there_is_one_event_and_what_follows_starts_anew() -> None:
    log = EventLog(100)
    cache = PrefixCache(num_blocks=20, events=log)
    run(cache, stream("a", 64))
    number = log.next_sequence_number
    cache.reset()
    assert log.since(number) == [CacheCleared(number)]
    run(cache, stream("a", 64))
    (stored,) = log.since(number + 1)
    assert set(stored.block_keys) == set(cache.block_keys())


def test_counters_are_kept_and_holdings_are_not() -> None:
    cache = PrefixCache(num_blocks=6, quotas={"tenant": TenantQuota(floor_blocks=2)})
    run(cache, stream("s", 32), num_public_tokens=32)
    run(cache, stream("s", 32) + stream("a", 16))
    run(cache, stream("b", 64))
    held = start(cache, stream("s", 16) + X)
    before, stats = cache.usage("tenant"), cache.stats()
    assert before.num_evicted_blocks > 0
    assert before.num_hit_tokens > 0
    cache.reset()
    after = cache.usage("tenant")
    assert (after.num_requests, after.num_prompt_tokens) == (before.num_requests, before.num_prompt_tokens)
    assert (after.num_hit_tokens, after.num_evicted_blocks) == (48, before.num_evicted_blocks)
    assert (after.num_cached_blocks, after.num_blocks, after.num_charged_blocks) == (0, 1, 1)
    assert (after.floor_blocks, cache.stats().num_evicted) == (2, stats.num_evicted)
    cache.release(held)
    assert cache.usage("tenant").num_charged_blocks == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_eviction_starts_anew_under_every_policy(policy: str) -> None:
    cache = PrefixCache(num_blocks=4, policy=policy)
    for _ in range(3):
        for letter in "abcdab":
            run(cache, stream(letter, 32))
        cache.reset()
        assert cache.evict(4) == 0
        cache.check()
    run(cache, stream("a", 64))
    assert cache.evict(4) == 4


@pytest.mark.parametrize("seed", range(8))
def test_a_cache_that_is_reset_all_the_time_never_gives_out_what_is_held(seed: int) -> None:
    draw = random.Random(seed)
    driver = CacheDriver(CacheSettings(num_blocks=draw.choice([10, 24]), block_size=draw.choice([1, 4])))
    operations = [name for name in OPERATION_WEIGHTS if name != "restart"]
    for number in range(150):
        driver.perform(draw.choice(operations), Chooser(draw.randint))
        if number % 7 == 0:
            driver.compared.reset()
        driver.compared.check()
