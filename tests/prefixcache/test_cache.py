"""Acquire, extend, fork, publish, release: what a handle holds and what it leaves behind."""

import math

import pytest
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.simulated_store import SimulatedStore
from support.token_streams import stream

from prefixcache import (
    BlockCopy,
    CacheHandle,
    ForeignHandleError,
    HandleReleasedError,
    InvalidArgumentError,
    Namespace,
    OutOfBlocksError,
    PendingCopiesError,
    PrefixCache,
    pack_tokens,
)

X = [9999]


def free_ids(cache: PrefixCache) -> set[int]:
    return set(cache._pool._free_ids)


def test_b01_a_table_never_keeps_a_duplicate_that_was_given_back() -> None:
    """Both compute a[64]; the second adopts the first one's blocks before a third takes the rest."""
    cache = PrefixCache(num_blocks=20)
    first = start(cache, stream("a", 64) + stream("b", 5))
    second = start(cache, stream("a", 64) + stream("c", 5))
    assert not set(first.block_table) & set(second.block_table)
    cache.publish(first, 69)
    cache.publish(second, 69)
    cache.check()
    assert second.block_table[:4] == first.block_table[:4]
    assert second.block_table[4] != first.block_table[4]
    third = start(cache, stream("d", 128))
    for _ in range(40):
        for handle in (first, second):
            cache.extend(handle, X)
            cache.check()
            assert not set(handle.block_table) & free_ids(cache)
            assert not set(handle.block_table[4:]) & set(third.block_table)
    for handle in (first, second, third):
        finish(cache, handle)
    assert cache.stats().num_live == 0


def test_b93_equal_prompts_of_one_step_are_stored_once() -> None:
    cache = PrefixCache(num_blocks=20)
    handles = [start(cache, [*stream("a", 64), 1000 + number]) for number in range(4)]
    for handle in handles:
        cache.publish(handle, 65)
        cache.check()
    assert len({tuple(handle.block_table[:4]) for handle in handles}) == 1
    assert cache.stats().num_live == 4 + 4
    assert cache.stats().num_live_unshared == 20
    for handle in handles:
        finish(cache, handle, 64)
    stats = cache.stats()
    assert (stats.num_idle, stats.num_free, stats.num_live) == (4, 16, 0)
    assert num_matched(cache, stream("a", 64) + stream("z", 1)) == 64


def test_b04_a_shared_tail_is_copied_for_every_writer() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 40))
    tree_ids = [block_id for node in cache.dump() for block_id in node.block_ids]
    with_b = start(cache, stream("a", 40) + stream("b", 4))
    with_c = start(cache, stream("a", 40) + stream("c", 4))
    prompt = start(cache, stream("a", 40))
    assert (with_b.num_cached_tokens, with_c.num_cached_tokens, prompt.num_cached_tokens) == (40, 40, 39)
    cache.publish(prompt, 40)
    shared_tail = prompt.block_table[2]
    choices = [prompt, *(cache.fork(prompt) for _ in range(3))]
    cache.check()
    for choice in choices:
        (copy,) = cache.extend(choice, X)
        assert copy == BlockCopy(shared_tail, choice.block_table[2], 8)
        assert choice.copies == [copy]
        cache.check()
    for choice in choices:
        cache.complete_copies(choice)
        cache.check()
    writers = [with_b, with_c, *choices]
    assert all(writer.block_table[:2] == tree_ids[:2] for writer in writers)
    assert len({tree_ids[2], *(writer.block_table[2] for writer in writers)}) == 7
    for writer in writers:
        cache.release(writer)
        cache.check()
    assert (cache.stats().num_idle, cache.stats().num_live) == (3, 0)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 48, 256])
def test_b44_a_repeated_prompt_leaves_one_token_to_compute(length: int) -> None:
    cache = PrefixCache(num_blocks=64)
    run(cache, stream("a", length))
    handle = cache.acquire(stream("a", length), NAMESPACE)
    cache.check()
    num_shared, num_slots = divmod(length - 1, 16)
    assert handle.num_cached_tokens == length - 1
    assert len(handle.block_table) == math.ceil(length / 16)
    assert [copy.num_slots for copy in handle.copies] == ([num_slots] if num_slots else [])
    assert all(copy.target == handle.block_table[num_shared] for copy in handle.copies)
    cache.complete_copies(handle)
    finish(cache, handle)
    assert cache.stats().num_idle == math.ceil(length / 16)


@pytest.mark.parametrize("num_written", [32, 64, 96])
def test_b45_a_prefill_that_is_cut_off_leaves_what_it_has_published(num_written: int) -> None:
    cache = PrefixCache(num_blocks=10)
    handle = start(cache, stream("a", 128))
    for written in range(32, num_written + 1, 32):
        cache.publish(handle, written)
        cache.check()
    cache.release(handle)
    cache.check()
    assert cache.stats().num_live == 0
    assert num_matched(cache, stream("a", 128) + X) == num_written
    handle = start(cache, stream("b", 128))
    assert handle.num_cached_tokens == 0
    finish(cache, handle)


def test_b11_nothing_is_found_before_it_is_published() -> None:
    cache = PrefixCache(num_blocks=20)
    first = start(cache, stream("a", 64))
    assert num_matched(cache, stream("a", 64) + stream("b", 4)) == 0
    cache.publish(first, 32)
    second = start(cache, stream("a", 64) + stream("b", 4))
    assert second.num_cached_tokens == 32
    cache.release(first)
    cache.release(second)
    cache.evict(20)
    cut_off = start(cache, stream("a", 64))
    finish(cache, cut_off, 24)
    assert num_matched(cache, stream("a", 64) + X) == 24
    assert cache.match(stream("a", 64) + X, NAMESPACE).block_ids == [0]


def test_b83_the_table_always_covers_every_position() -> None:
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 90))
    for num_tokens in range(91, 101):
        cache.extend(handle, X)
        handle.check()
        assert len(handle.block_table) == math.ceil(num_tokens / 16)
    assert len(handle.block_table) == 7
    short = start(cache, stream("b", 6))
    cache.extend(short, X)
    assert (short.num_tokens, len(short.block_table)) == (7, 1)


def test_the_handle_knows_its_tokens() -> None:
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, pack_tokens(stream("a", 20)))
    assert cache.extend(handle, [1, 2, 3]) == []
    assert handle.token_ids == [*stream("a", 20), 1, 2, 3]
    assert (handle.num_tokens, handle.num_cached_tokens) == (23, 0)


def test_extend_over_several_blocks_takes_all_or_nothing() -> None:
    cache = PrefixCache(num_blocks=4)
    handle = start(cache, stream("a", 20))
    before = (list(handle.block_table), handle.token_ids, cache.stats())
    with pytest.raises(OutOfBlocksError) as caught:
        cache.extend(handle, stream("b", 48))
    assert (caught.value.num_needed, caught.value.num_free, caught.value.num_idle) == (3, 2, 0)
    assert (handle.block_table, handle.token_ids, cache.stats()) == before
    cache.check()
    assert cache.extend(handle, stream("b", 44)) == []
    assert (handle.num_tokens, handle.block_table) == (64, [0, 1, 2, 3])


def test_extend_evicts_what_is_idle() -> None:
    cache = PrefixCache(num_blocks=2)
    run(cache, stream("a", 16))
    handle = start(cache, stream("b", 16))
    cache.extend(handle, X)
    cache.check()
    assert (cache.stats().num_evicted, num_matched(cache, stream("a", 17))) == (1, 0)


def test_extend_behind_a_published_tail_copies_it() -> None:
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 40))
    cache.publish(handle, 40, include_tail=True)
    tail = handle.block_table[2]
    assert cache.extend(handle, X) == [BlockCopy(tail, handle.block_table[2], 8)]
    cache.check()
    assert tail != handle.block_table[2]
    cache.complete_copies(handle)
    cache.check()
    assert cache.extend(handle, X) == []
    assert cache.stats().num_copied == 1


def test_extend_at_a_block_boundary_copies_nothing() -> None:
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 32))
    cache.publish(handle, 32, include_tail=True)
    forked = cache.fork(handle)
    assert (cache.extend(handle, X), cache.extend(forked, X)) == ([], [])
    assert handle.block_table[:2] == forked.block_table[:2]
    assert handle.block_table[2] != forked.block_table[2]
    cache.check()


def test_the_source_of_a_pending_copy_survives_eviction_and_supersession() -> None:
    store = SimulatedStore(16)
    cache = PrefixCache(num_blocks=20, on_free=store.poison)
    first = start(cache, stream("a", 40))
    for position in range(40):
        store.write(first.block_table, NAMESPACE.domain, stream("a", 40), position)
    finish(cache, first)
    second = cache.acquire(stream("a", 40) + X, NAMESPACE)
    run(cache, stream("a", 48))  # supersedes the tail that is about to be copied
    cache.evict(20)
    cache.check()
    store.execute(second.copies)
    cache.complete_copies(second)
    cache.check()
    store.expect(second.block_table, NAMESPACE.domain, stream("a", 40), range(40))


def test_release_with_pending_copies_gives_their_sources_back() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 40))
    handle = cache.acquire(stream("a", 39), NAMESPACE)
    assert len(handle.copies) == 1
    cache.release(handle)
    cache.check()
    assert (cache.stats().num_live, cache.stats().num_idle, cache.stats().num_copied) == (0, 3, 0)
    assert cache.evict(3) == 3


def test_publish_is_refused_over_a_pending_copy_only() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 40))
    handle = cache.acquire(stream("a", 40) + stream("b", 8), NAMESPACE)
    cache.publish(handle, 32)
    with pytest.raises(PendingCopiesError, match="publishing 33 tokens"):
        cache.publish(handle, 33)
    cache.check()
    cache.complete_copies(handle)
    cache.publish(handle, 48)
    cache.check()


def test_adoption_waits_while_a_fork_shares_the_block_behind() -> None:
    """Otherwise the shared tail would be in the tree below blocks that the fork does not hold."""
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 40))
    forked = cache.fork(handle)
    other = start(cache, stream("a", 32) + X)
    cache.publish(other, 32)
    own_ids = list(handle.block_table)
    cache.publish(handle, 40, include_tail=True)
    cache.check()
    assert handle.block_table == own_ids
    cache.release(forked)
    cache.publish(handle, 40, include_tail=True)
    cache.check()
    assert handle.block_table == other.block_table[:2] + own_ids[2:]
    cache.release(handle)
    cache.release(other)
    assert cache.evict(20) == 3


def test_without_cache_nothing_is_read_and_nothing_left() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 40))
    before = cache.dump()
    handle = cache.acquire(stream("a", 40), NAMESPACE, use_cache=False)
    assert (handle.num_cached_tokens, handle.copies) == (0, [])
    forked = cache.fork(handle)
    for each in (handle, forked):
        cache.publish(each, 40, include_tail=True)
        cache.check()
        cache.release(each)
    assert cache.dump() == before


@pytest.mark.parametrize("max_cached", [0, 1, 15, 16, 20, 39, 40])
def test_no_more_than_asked_is_read_and_everything_is_published(max_cached: int) -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 30))
    handle = cache.acquire([*stream("a", 40), *X], NAMESPACE, max_cached_tokens=max_cached)
    assert handle.num_cached_tokens == min(max_cached, 30)
    cache.complete_copies(handle)
    cache.publish(handle, 41, include_tail=True)
    cache.check()
    cache.release(handle)
    assert num_matched(cache, [*stream("a", 40), *X, *X]) == 41
    usage = cache.usage(NAMESPACE.tenant)
    assert (usage.num_requests, usage.num_bypassed) == (1, 1)


def test_b17_a_handle_is_released_once_and_only_by_its_cache() -> None:
    cache, other_cache = PrefixCache(num_blocks=20), PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 40))
    with pytest.raises(ForeignHandleError):
        other_cache.release(handle)
    cache.release(handle)
    handle.check()
    stats = cache.stats()
    for use in (
        cache.release,
        cache.complete_copies,
        cache.fork,
        lambda released: cache.extend(released, X),
        lambda released: cache.publish(released, 0),
    ):
        with pytest.raises(HandleReleasedError):
            use(handle)
    assert cache.stats() == stats
    cache.check()
    other_cache.check()


@pytest.mark.parametrize("block_size", [0, -16, 3, 24])
def test_a_block_size_is_a_power_of_two(block_size: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"block_size is {block_size}"):
        PrefixCache(num_blocks=4, block_size=block_size)


def test_bad_arguments_are_named_and_change_nothing() -> None:
    cache = PrefixCache(num_blocks=4)
    with pytest.raises(InvalidArgumentError, match="num_blocks is 0"):
        PrefixCache(num_blocks=0)
    with pytest.raises(InvalidArgumentError, match="prompt is empty"):
        cache.acquire([], NAMESPACE)
    handle = start(cache, stream("a", 20))
    for num_written in (-1, 21):
        with pytest.raises(InvalidArgumentError, match=f"num_written_tokens is {num_written}"):
            cache.publish(handle, num_written)
    with pytest.raises(InvalidArgumentError, match="token id -5"):
        cache.extend(handle, [-5])
    assert handle.num_tokens == 20
    cache.check()
    assert cache.match([], NAMESPACE) == ([], 0, None)


def test_free_idle_and_live_sum_to_the_pool_at_every_point() -> None:
    cache = PrefixCache(num_blocks=20)

    def blocks() -> tuple[int, int, int]:
        stats = cache.stats()
        assert stats.num_free + stats.num_idle + stats.num_live == stats.num_blocks == cache.num_blocks
        assert cache.num_available_blocks == stats.num_free + stats.num_idle
        return stats.num_free, stats.num_idle, stats.num_live

    handle: CacheHandle = start(cache, stream("a", 40))
    assert blocks() == (17, 0, 3)
    cache.publish(handle, 40)
    assert blocks() == (17, 0, 3)
    cache.release(handle)
    assert blocks() == (18, 2, 0)
    cache.evict(1)
    assert blocks() == (19, 1, 0)


def test_the_dump_tells_who_holds_what() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 40))
    readers = [start(cache, stream("a", 16) + [1000 + number] * 20) for number in range(3)]
    upper, *below = cache.dump()
    assert (upper.num_readers, upper.num_live_blocks, upper.parent_id) == (3, 1, 0)
    assert (upper.model, upper.adapter, upper.tenant, upper.public) == ("model", "", "tenant", False)
    assert upper.token_ids == tuple(stream("a", 16))
    assert {node.parent_id for node in below[:1]} == {upper.id}
    assert all(node.num_readers == 0 for node in below)
    assert all(node.last_used < upper.last_used for node in below)
    for reader in readers:
        cache.release(reader)
    assert cache.dump()[0].num_readers == 0


def test_the_dump_goes_as_deep_as_is_asked() -> None:
    cache = PrefixCache(num_blocks=20)
    for length in (64, 48, 32, 16):  # every divergence splits the chain once more
        run(cache, stream("a", length) + X)
    run(cache, stream("b", 20), Namespace("other model", "tenant"))
    assert len(cache.dump()) == cache.stats().num_nodes == 10
    assert [len(cache.dump(max_depth)) for max_depth in (1, 2, 3, 4, 5, 6)] == [2, 5, 7, 9, 10, 10]
    assert {node.parent_id for node in cache.dump(1)} == {0}
    assert {node.id for node in cache.dump(1)} >= {node.parent_id for node in cache.dump(2)} - {0}
    with pytest.raises(InvalidArgumentError, match="max_depth is -1"):
        cache.dump(-1)


def test_a_hash_collision_costs_a_miss_and_nothing_else() -> None:
    cache = PrefixCache(num_blocks=20, chunk_hash=lambda chunk: 0)
    run(cache, stream("a", 40))
    run(cache, stream("b", 40))
    assert num_matched(cache, stream("a", 40) + X) == 40
    assert num_matched(cache, stream("b", 40) + X) == 0
    assert cache.stats().num_idle == 3
    run(cache, stream("a", 20) + stream("c", 28))
    assert num_matched(cache, stream("a", 20) + stream("c", 28) + X) == 20
    cache.evict(20)
    run(cache, stream("b", 40))
    assert num_matched(cache, stream("b", 40) + X) == 40
