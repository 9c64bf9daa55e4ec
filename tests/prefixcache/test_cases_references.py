"""Cases of the kind refcount: who holds which block, counted again by hand after every operation."""

import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Lock

import pytest
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.cache_state import BlockCounts, counted, recounted
from support.simulated_store import SimulatedStore
from support.token_streams import stream

from prefixcache import CacheHandle, Namespace, OutOfBlocksError, PrefixCache

X = [9999]


def test_b37_what_is_evicted_after_a_lookup_is_not_given_out() -> None:
    """A match promises nothing: acquire looks again, so there is no moment between lookup and reference."""
    cache = PrefixCache(num_blocks=8)
    run(cache, stream("a", 64))
    prompt = stream("a", 64) + X
    looked_up = cache.match(prompt, NAMESPACE)
    assert (looked_up.block_ids, looked_up.num_tokens) == ([0, 1, 2, 3], 64)
    assert cache.evict(100) == 4
    other = start(cache, stream("d", 128))
    cache.publish(other, 128)
    with pytest.raises(OutOfBlocksError):
        cache.acquire(prompt, NAMESPACE)
    cache.release(other)
    handle = cache.acquire(prompt, NAMESPACE)
    cache.check()
    assert handle.num_cached_tokens == 0


def test_b37_after_a_partial_eviction_the_valid_rest_is_given_out() -> None:
    cache = PrefixCache(num_blocks=8)
    run(cache, stream("a", 64))
    prompt = stream("a", 64) + X
    assert cache.match(prompt, NAMESPACE).num_tokens == 64
    assert cache.evict(2) == 2
    filler = start(cache, stream("d", 48))
    handle = cache.acquire(prompt, NAMESPACE)
    assert (handle.num_cached_tokens, handle.block_table[:2]) == (32, [0, 1])
    assert not set(handle.block_table) & set(filler.block_table)
    cache.check()


def test_b37_four_threads_that_take_turns_by_a_lock_see_only_their_own_rows() -> None:
    """One call is one step: whoever has several threads holds a lock around each, and needs no more."""
    store = SimulatedStore(4)
    cache = PrefixCache(num_blocks=40, block_size=4, on_free=store.poison)
    lock = Lock()

    def serve(seed: int) -> int:
        draw = Random(seed)
        tokens: list[int] = []
        handle: CacheHandle | None = None
        num_hit_tokens = 0
        for _ in range(5000):
            with lock:
                if draw.random() < 0.1:
                    cache.evict(draw.randrange(4))
                elif handle is None:
                    tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 24))]
                    cache.match(tokens, NAMESPACE)
                    handle = cache.acquire(tokens, NAMESPACE)
                    store.execute(handle.copies)
                    cache.complete_copies(handle)
                    num_hit_tokens += handle.num_cached_tokens
                    for position in range(handle.num_cached_tokens, len(tokens)):
                        store.write(handle.block_table, NAMESPACE.domain, tokens, position)
                else:
                    store.expect(handle.block_table, NAMESPACE.domain, tokens, range(len(tokens)))
                    cache.publish(handle, draw.randrange(len(tokens) + 1), include_tail=True)
                    cache.release(handle)
                    handle = None
        if handle is not None:
            with lock:
                cache.release(handle)
        return num_hit_tokens

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            num_hit_tokens = list(threads.map(serve, range(4)))
    finally:
        sys.setswitchinterval(switch_interval)
    assert all(num_hit_tokens)
    cache.check()
    assert counted(cache).num_live == 0


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_b52_counts_are_right_after_each_of_10000_operations(block_size: int) -> None:
    """Also B57: whatever happens, no node is empty."""
    draw = Random(block_size)
    cache = PrefixCache(num_blocks=24, block_size=block_size)
    live: list[CacheHandle] = []
    num_refused = 0
    kinds = ["acquire"] * 3 + ["extend", "publish", "publish", "fork", "evict"] + ["release"] * 3
    for number in range(10_000):
        kind = draw.choice(kinds)
        if kind == "evict":
            num_idle = counted(cache).num_idle
            num_wanted = draw.randrange(4)
            assert cache.evict(num_wanted) == min(num_wanted, num_idle)
        elif kind == "acquire" or not live:
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 6 * block_size + 1))]
            cache.match(prompt, NAMESPACE)
            try:
                live.append(cache.acquire(prompt, NAMESPACE, use_cache=draw.random() < 0.9))
            except OutOfBlocksError:
                num_refused += 1
        else:
            handle = draw.choice(live)
            cache.complete_copies(handle)
            if kind == "extend":
                try:
                    cache.extend(handle, [draw.randrange(2) for _ in range(draw.randrange(block_size + 1))])
                except OutOfBlocksError:
                    num_refused += 1
            elif kind == "publish":
                num_written = draw.choice([handle.num_tokens, draw.randrange(handle.num_tokens + 1)])
                cache.publish(handle, num_written, include_tail=draw.random() < 0.5)
            elif kind == "fork":
                live.append(cache.fork(handle))
            else:
                cache.release(handle)
                live.remove(handle)
        counts = counted(cache)
        assert counts == recounted(cache)
        assert min(counts) >= 0
        assert sum(counts) == 24
        assert all(node.token_ids for node in cache.dump())
        if number % 50 == 0:
            cache.check()
    assert num_refused > 100
    assert cache.stats().num_evicted > 500
    for handle in live:
        cache.release(handle)
    cache.check()
    assert counted(cache).num_live == 0


@pytest.mark.parametrize("use_cache", [True, False])
def test_b53_200_requests_one_after_the_other_leave_nothing_live(use_cache: bool) -> None:
    cache = PrefixCache(num_blocks=64)
    for number in range(201):
        handle = cache.acquire([number] * 64, NAMESPACE, use_cache=use_cache)
        assert counted(cache).num_live == 4
        finish(cache, handle)
        num_cached = min(4 * (number + 1), 64) if use_cache else 0
        assert counted(cache) == BlockCounts(64 - num_cached, num_cached, 0)


def test_b91_only_what_is_shared_is_protected_also_when_it_is_split_while_held() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    held = start(cache, stream("a", 32) + stream("b", 32))
    assert counted(cache) == BlockCounts(14, 2, 4)  # 2 shared, 2 of its own
    run(cache, stream("a", 48) + stream("c", 16))
    assert counted(cache) == BlockCounts(13, 3, 4)
    cache.release(held)
    assert counted(cache) == BlockCounts(15, 5, 0)
    assert cache.evict(100) == 5
    assert counted(cache) == BlockCounts(20, 0, 0)
    cache.check()


def test_b91_1000_lengths_and_points_of_divergence_leave_nothing_locked() -> None:
    draw = Random(91)
    cache = PrefixCache(num_blocks=64)
    for _ in range(1000):
        length = draw.randrange(1, 130)
        run(cache, stream("a", length))
        held = start(cache, stream("a", draw.randrange(length + 1)) + stream("b", draw.randrange(1, 40)))
        run(cache, stream("a", draw.randrange(length + 1)) + stream("c", draw.randrange(1, 40)))
        cache.publish(held, draw.randrange(held.num_tokens + 1))
        cache.release(held)
        num_idle = counted(cache).num_idle
        assert cache.evict(100) == num_idle
        assert counted(cache) == BlockCounts(64, 0, 0)


def test_b24_nobody_reads_what_another_has_written() -> None:
    """16 sequences at a time over a pool that is always short; aborts, preemptions, evictions."""
    draw = Random(24)
    store = SimulatedStore(4)
    cache = PrefixCache(num_blocks=48, block_size=4, on_free=store.poison)
    users = [Namespace("model", f"tenant {number % 4}", salt=str(number % 8)) for number in range(16)]
    running: dict[int, tuple[CacheHandle, list[int]]] = {}
    num_started = num_aborted = 0

    def read_all(user: int) -> None:
        handle, tokens = running[user]
        assert set(tokens) <= set(range(100 * user, 100 * user + 3))
        store.expect(handle.block_table, users[user].domain, tokens, range(len(tokens)))

    def write_rest(user: int, start: int) -> None:
        handle, tokens = running[user]
        store.execute(handle.copies)
        cache.complete_copies(handle)
        for position in range(start, len(tokens)):
            store.write(handle.block_table, users[user].domain, tokens, position)

    def leave(user: int, *, aborts: bool) -> None:
        handle, tokens = running.pop(user)
        if not aborts:
            cache.publish(handle, len(tokens), include_tail=True)
        cache.release(handle)

    while num_started < 500:
        user = draw.randrange(16)
        if user not in running:
            tokens = [100 * user + draw.randrange(3) for _ in range(draw.randrange(1, 20))]
            try:
                handle = cache.acquire(tokens, users[user])
            except OutOfBlocksError:
                leave(draw.choice(list(running)), aborts=False)
                continue
            running[user] = (handle, tokens)
            num_started += 1
            write_rest(user, handle.num_cached_tokens)
        elif draw.random() < 0.15:
            aborts = draw.random() < 0.5
            num_aborted += aborts
            leave(user, aborts=aborts)
            continue
        else:
            handle, tokens = running[user]
            try:
                cache.extend(handle, next_token := [100 * user + draw.randrange(3)])
            except OutOfBlocksError:
                leave(user, aborts=False)
                continue
            tokens += next_token
            write_rest(user, len(tokens) - 1)
        for each in running:
            read_all(each)
    assert num_aborted > 20
    assert cache.stats().num_evicted > 500
    assert num_matched(cache, [0] * 8, users[1]) == 0
    for user in list(running):
        leave(user, aborts=False)
    cache.check()
    assert counted(cache).num_live == 0
