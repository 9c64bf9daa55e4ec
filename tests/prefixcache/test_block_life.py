"""How long blocks stay, how soon they are used again, and why they go."""

from __future__ import annotations

import pytest
from support.cache_runs import NAMESPACE, run
from support.token_streams import stream

from prefixcache import Departure, HistogramCounts, Namespace, PrefixCache, TenantQuota
from prefixcache.block_life import LIFE_SECONDS

OTHER_TENANT = Namespace("model", "other")


class Clock:
    """Stands still unless it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def left(cache: PrefixCache) -> dict[str, int]:
    """Blocks that left, by those causes that there were."""
    cache.check()
    return {departure.value: num for departure, num in cache.block_life().num_left.items() if num}


def only(counts: HistogramCounts) -> dict[float, int]:
    """The lowest bound that each value is within -> how many."""
    return {bound: num for bound, num in zip(counts.bounds, counts.counts, strict=False) if num}


def test_seconds_are_those_of_the_cache_and_every_block_counts() -> None:
    clock = Clock()
    cache = PrefixCache(num_blocks=20, clock=clock)
    run(cache, stream("a", 64))  # 4 blocks
    clock.now += 50
    run(cache, [*stream("a", 48), *stream("b", 16)])  # uses 3 of them, and adds one
    clock.now += 200
    assert cache.evict(20) == 5
    life = cache.block_life()
    assert only(life.reuse_gap) == {60: 3}
    assert life.reuse_gap.sum == 150
    assert only(life.residency) == {300: 5}
    assert life.residency.sum == 4 * 250 + 200
    assert life.idle.sum == 200 + 3 * 200 + 250
    assert life.num_stored == 5


def test_what_a_request_publishes_later_is_not_used_again_by_itself() -> None:
    clock = Clock()
    cache = PrefixCache(num_blocks=20, clock=clock)
    handle = cache.acquire(stream("a", 64), NAMESPACE)
    for num_tokens in (16, 48, 64):
        clock.now += 2
        cache.publish(handle, num_tokens)
    cache.release(handle)
    assert cache.block_life().reuse_gap.total == 0
    run(cache, stream("a", 64))
    assert only(cache.block_life().reuse_gap) == {LIFE_SECONDS[0]: 4}


def test_causes_tell_who_needed_the_room() -> None:
    cache = PrefixCache(num_blocks=4)
    run(cache, stream("a", 64))
    run(cache, stream("b", 16))
    assert left(cache) == {"own_request": 1}
    run(cache, stream("o", 32), OTHER_TENANT)
    assert left(cache) == {"own_request": 1, "other_request": 2}
    cache.evict(1)
    assert left(cache) == {"own_request": 1, "other_request": 2, "asked": 1}
    num_cached = cache.stats().num_idle
    cache.reset()
    assert left(cache) == {"own_request": 1, "other_request": 2, "asked": 1, "reset": num_cached}
    assert cache.stats().num_evicted == 4


def test_at_its_ceiling_a_tenant_pushes_itself_out() -> None:
    cache = PrefixCache(num_blocks=20, quotas={NAMESPACE.tenant: TenantQuota(ceiling_blocks=2)})
    run(cache, stream("a", 32))
    run(cache, stream("b", 32))
    assert left(cache) == {"ceiling": 2}


def test_what_was_kept_for_a_time_goes_as_expired() -> None:
    clock = Clock()
    cache = PrefixCache(num_blocks=4, clock=clock)
    run(cache, stream("a", 32))
    cache.pin(stream("a", 32), NAMESPACE, ttl_seconds=10)
    clock.now += 11
    run(cache, stream("b", 48))
    assert left(cache) == {"expired": 1}


def test_a_tail_goes_when_a_longer_one_has_all_of_it() -> None:
    cache = PrefixCache(num_blocks=8)
    for num_tokens in (20, 25):
        handle = cache.acquire(stream("a", num_tokens), NAMESPACE)
        cache.complete_copies(handle)
        cache.publish(handle, num_tokens, include_tail=True)
        cache.release(handle)
    assert left(cache) == {"superseded": 1}
    assert cache.stats().num_evicted == 0


def test_what_is_cut_in_two_keeps_its_seconds() -> None:
    clock = Clock()
    cache = PrefixCache(num_blocks=20, clock=clock)
    run(cache, stream("a", 64))
    clock.now += 100
    run(
        cache, stream("a", 32)
    )  # splits behind the first block, which it finds, and the second, which it adopts
    clock.now += 1
    assert cache.evict(20) == 4
    assert cache.block_life().residency.sum == pytest.approx(4 * 101)
    assert only(cache.block_life().reuse_gap) == {120: 2}
    assert cache.block_life().idle.sum == pytest.approx(2 * 1 + 2 * 101)


def test_a_snapshot_comes_in_as_stored(tmp_path) -> None:
    clock = Clock()
    cache = PrefixCache(num_blocks=8, clock=clock)
    run(cache, stream("a", 64))
    cache.save(tmp_path / "index")
    clock.now += 3600
    restored = PrefixCache(num_blocks=8, clock=clock)
    restored.restore(tmp_path / "index")
    restored.check()
    clock.now += 5
    restored.evict(8)
    assert restored.block_life().residency.sum == 4 * 5
    assert restored.block_life().num_left[Departure.ASKED] == 4
