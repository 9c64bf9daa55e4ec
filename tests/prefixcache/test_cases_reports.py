"""Cases of the kinds metrics, router and persistence: what the cache tells, and what survives a restart."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.cache_state import BlockCounts, counted, recounted
from support.token_streams import stream

from prefixcache import (
    CacheCleared,
    CacheHandle,
    EventLog,
    HandleReleasedError,
    Namespace,
    OutOfBlocksError,
    PrefixCache,
    SnapshotDamagedError,
    TenantQuota,
    TenantUsage,
)
from prefixcache.event_index import EventIndex

X = [9999]
COUNTERS = (
    "num_requests",
    "num_prompt_tokens",
    "num_hit_tokens",
    "num_resumed_hit_tokens",
    "num_bypassed",
    "num_evicted_blocks",
)


def usage(cache: PrefixCache) -> TenantUsage:
    return cache.usage("tenant")


def counters(cache: PrefixCache) -> tuple[int, ...]:
    return tuple(getattr(usage(cache), name) for name in COUNTERS)


def test_b122_when_all_are_cancelled_at_once_nothing_is_live() -> None:
    """50 that run, at all stages; those that wait hold nothing of the cache."""
    cache = PrefixCache(num_blocks=400)
    run(cache, stream("s", 40))
    running = [cache.acquire(stream("s", 40) + [1000 + number] * 60, NAMESPACE) for number in range(50)]
    for number, handle in enumerate(running[:40]):
        cache.complete_copies(handle)
        cache.publish(handle, number)
        cache.extend(handle, X * number)
    assert counted(cache) == recounted(cache)
    assert counted(cache).num_live > 200
    for handle in running:
        cache.release(handle)
    assert counted(cache) == recounted(cache)
    assert counted(cache).num_live == cache.stats().num_live_unshared == 0
    assert usage(cache).num_blocks == usage(cache).num_cached_blocks == cache.stats().num_idle


def test_b131_what_is_found_after_a_preemption_is_no_hit() -> None:
    """20 prompts without a common prefix, over a pool that holds five of them."""
    draw = Random(131)
    cache = PrefixCache(num_blocks=16)
    waiting = [([1000 * number + draw.randrange(1000) for _ in range(40)], False) for number in range(20)]
    running: list[CacheHandle] = []
    num_preempted = num_resumed_tokens = 0
    while waiting or running:
        if waiting and len(running) < 4:
            tokens, is_resumed = waiting[0]
            try:
                handle = cache.acquire(tokens, NAMESPACE, is_resumed=is_resumed)
            except OutOfBlocksError:
                finish(cache, running.pop(0))
                continue
            waiting.pop(0)
            cache.complete_copies(handle)
            num_resumed_tokens += handle.num_cached_tokens
            running.append(handle)
        elif num_preempted < 8 and draw.random() < 0.5:
            handle = running.pop()
            waiting.insert(1, (handle.token_ids, True))
            finish(cache, handle)
            num_preempted += 1
        else:
            finish(cache, running.pop(0))
    found = usage(cache)
    assert (found.num_requests, found.num_prompt_tokens, found.num_hit_tokens) == (20, 800, 0)
    assert found.num_resumed_hit_tokens == num_resumed_tokens > 0


def test_b131_hits_are_counted_once_a_request_and_never_above_the_queries() -> None:
    draw = Random(13)
    cache = PrefixCache(num_blocks=40, block_size=4)
    num_prompt_tokens = num_hit_tokens = 0
    for num_requests in range(1, 301):
        prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 20))]
        handle = start(cache, prompt)
        num_prompt_tokens += len(prompt)
        num_hit_tokens += handle.num_cached_tokens
        forked = cache.fork(handle)  # the same request
        cache.extend(handle, X)
        cache.complete_copies(handle)
        finish(cache, handle)
        cache.release(forked)
        found = usage(cache)
        assert (found.num_requests, found.num_prompt_tokens) == (num_requests, num_prompt_tokens)
        assert found.num_hit_tokens == num_hit_tokens < num_prompt_tokens
    assert found.num_resumed_hit_tokens == found.num_bypassed == 0


def test_b136_idle_blocks_are_not_in_use() -> None:
    cache = PrefixCache(num_blocks=80)
    for number in range(48):
        handle = start(cache, [number] * 32)
        assert counted(cache).num_live == 2
        assert sum(recounted(cache)) == sum(counted(cache)) == 80
        finish(cache, handle)
        if number == 23:
            assert counted(cache) == BlockCounts(num_free=32, num_idle=48, num_live=0)
            assert cache.num_available_blocks == 80
    assert counted(cache) == BlockCounts(num_free=0, num_idle=80, num_live=0)  # 96, capped
    assert cache.num_available_blocks == 80


def test_b137_bypasses_are_no_misses_and_before_any_query_there_is_no_ratio() -> None:
    """The counters are what a ratio is made of: both are 0 until somebody asks."""
    cache = PrefixCache(num_blocks=40, quotas={"tenant": TenantQuota()})
    assert counters(cache) == (0, 0, 0, 0, 0, 0)
    run(cache, stream("a", 40))
    before = usage(cache)
    for _ in range(10):
        handle = cache.acquire(stream("a", 40), NAMESPACE, use_cache=False)
        assert handle.num_cached_tokens == 0
        cache.release(handle)
    cache.match(stream("a", 40), NAMESPACE)
    cache.explain(stream("a", 40), NAMESPACE)
    after = usage(cache)
    assert (after.num_requests, after.num_prompt_tokens, after.num_hit_tokens) == (1, 40, 0)
    assert (before.num_bypassed, after.num_bypassed) == (0, 10)


def test_b80_counters_never_fall_and_gauges_never_are_negative() -> None:
    """1000 operations, among them everything a caller can do twice."""
    draw = Random(80)
    cache = PrefixCache(num_blocks=20, block_size=4)
    handles: list[CacheHandle] = []
    before = (0,) * (len(COUNTERS) + 2)
    for _ in range(1000):
        if not handles or draw.random() < 0.4:
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 24))]
            try:
                handles.append(
                    cache.acquire(
                        prompt,
                        NAMESPACE,
                        is_resumed=draw.random() < 0.2,
                        use_cache=draw.random() < 0.8,
                    )
                )
            except OutOfBlocksError:
                cache.reset()
        else:
            handle = draw.choice(handles)
            if handle.is_released:
                for use in (cache.release, cache.fork, cache.complete_copies):
                    with pytest.raises(HandleReleasedError):
                        use(handle)
                handles.remove(handle)
            else:
                cache.complete_copies(handle)
                cache.publish(handle, draw.randrange(handle.num_tokens + 1), include_tail=True)
                cache.release(handle)
        after = (*counters(cache), cache.stats().num_evicted, cache.stats().num_copied)
        assert all(new >= old for new, old in zip(after, before, strict=True))
        before = after
        assert min(counted(cache)) >= 0
        gauges = usage(cache)
        assert 0 <= gauges.num_cached_blocks <= gauges.num_blocks <= 20
        assert gauges.num_charged_blocks == gauges.num_blocks
    assert cache.stats().num_evicted > 50


def test_b124_a_reset_is_never_refused_and_who_runs_ends_as_if_nothing_had_happened() -> None:
    log = EventLog(1000)
    cache = PrefixCache(num_blocks=20, events=log)
    run(cache, stream("a", 40))
    handle = start(cache, stream("a", 40) + stream("b", 10))
    table, before = list(handle.block_table), counters(cache)
    cache.reset()
    cache.check()
    assert isinstance(log.since(1)[-1], CacheCleared)
    assert counted(cache) == BlockCounts(num_free=16, num_idle=0, num_live=4)
    assert counters(cache) == before
    assert (handle.block_table, handle.num_cached_tokens) == (table, 40)
    cache.extend(handle, X * 14)
    assert handle.block_table[:4] == table
    finish(cache, handle)
    assert counted(cache) == BlockCounts(num_free=20, num_idle=0, num_live=0)
    for prompt in (stream("a", 40), handle.token_ids, stream("a", 40) + stream("b", 10)):
        assert num_matched(cache, prompt + X) == 0
    assert cache.block_keys() == {}


def quota_drop(cache: PrefixCache, path: Path) -> None:
    cache.set_quota("tenant", TenantQuota(ceiling_blocks=3))
    run(cache, stream("q", 40))


def abort(cache: PrefixCache, path: Path) -> None:
    handle = start(cache, stream("b", 64))
    cache.publish(handle, 33)
    cache.release(handle)


def preempt(cache: PrefixCache, path: Path) -> None:
    handle = start(cache, stream("a", 48) + stream("b", 40))
    cache.extend(handle, X * 9)
    finish(cache, handle, 70)
    finish(cache, start(cache, handle.token_ids + X))


def split(cache: PrefixCache, path: Path) -> None:
    run(cache, stream("a", 40) + stream("c", 30))


def supersede(cache: PrefixCache, path: Path) -> None:
    run(cache, stream("b", 20))
    run(cache, stream("b", 25))
    run(cache, stream("b", 33))


def publish_in_public(cache: PrefixCache, path: Path) -> None:
    run(cache, stream("a", 64), num_public_tokens=40)


def restore_in_vain(cache: PrefixCache, path: Path) -> None:
    cache.save(path)
    path.write_bytes(path.read_bytes()[:-1])
    cache.reset()
    with pytest.raises(SnapshotDamagedError):
        cache.restore(path)


def restore(cache: PrefixCache, path: Path) -> None:
    cache.save(path)
    cache.reset()
    cache.restore(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda cache, path: cache.evict(2),
        lambda cache, path: cache.evict(100),
        lambda cache, path: cache.reset(),
        quota_drop,
        abort,
        preempt,
        split,
        supersede,
        publish_in_public,
        restore_in_vain,
        restore,
    ],
)
def test_b118_events_replayed_are_what_is_in_the_tree(
    change: Callable[[PrefixCache, Path], object], tmp_path: Path
) -> None:
    """From the first event, and from a state taken before the change."""
    log = EventLog(1000)
    cache = PrefixCache(num_blocks=12, policy="lru", events=log)
    run(cache, stream("a", 64))
    run(cache, stream("a", 32) + stream("d", 32), Namespace("model", "other"))
    indexes = [EventIndex(), EventIndex.from_state(cache.event_state())]
    for event in log.since(1):
        indexes[0].apply(event)
    next_number = log.next_sequence_number
    change(cache, tmp_path / "snapshot")
    cache.check()
    for index in indexes:
        for event in log.since(next_number):
            index.apply(event)
        index.check()
        assert dict(index.parent_of) == cache.block_keys()
    assert log.next_sequence_number > next_number
    log.check()


def test_b18_other_weights_or_a_reset_make_every_prompt_cold() -> None:
    cache = PrefixCache(num_blocks=40)
    prompt = stream("a", 64) + stream("b", 4)
    old, new = Namespace("model@seed1", "tenant"), Namespace("model@seed2", "tenant")
    run(cache, prompt, old)
    assert run(cache, prompt, new).num_cached_tokens == 0
    assert num_matched(cache, prompt + X, new) == 68
    cache.reset()  # the KV memory is given up, or the rope base, the dtype or the window is another
    for namespace in (old, new):
        assert run(cache, prompt, namespace).num_cached_tokens == 0


def test_b86_what_was_restored_hits(tmp_path: Path) -> None:
    """Whole blocks as in the case, and with the tail that our rule keeps."""
    cache = PrefixCache(num_blocks=40)
    handle = start(cache, stream("a", 64))
    cache.publish(handle, 64)
    cache.release(handle)
    cache.save(tmp_path / "one")
    restored = PrefixCache(num_blocks=40)
    assert restored.restore(tmp_path / "one") == 4
    assert restored.block_keys() == cache.block_keys()
    handle = start(restored, stream("a", 64) + stream("b", 3))
    assert (handle.num_cached_tokens, handle.num_tokens - handle.num_cached_tokens) == (64, 3)
    finish(restored, handle)
    restored.save(tmp_path / "two")
    again = PrefixCache(num_blocks=40)
    assert again.restore(tmp_path / "two") == 5
    assert num_matched(again, stream("a", 64) + stream("b", 3) + X) == 67


def test_b94_a_restart_with_the_same_secret_hits(tmp_path: Path) -> None:
    owner = Namespace("model", "tenant", secret=b"deployment")
    cache = PrefixCache(num_blocks=40, key_secret=b"deployment")
    run(cache, stream("a", 48), owner)
    cache.save(tmp_path / "snapshot")
    restarted = PrefixCache(num_blocks=40, key_secret=b"deployment")
    restarted.restore(tmp_path / "snapshot")
    assert num_matched(restarted, stream("a", 48) + X, owner) == 48
    assert num_matched(restarted, stream("a", 48) + X, Namespace("model", "tenant", secret=b"other")) == 0
    assert restarted.block_keys() == cache.block_keys()
