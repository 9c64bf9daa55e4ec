"""What goes first, what cannot go, and what comes back."""

import random

import pytest
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.token_streams import stream

from prefixcache import InvalidArgumentError, OutOfBlocksError, PrefixCache

X = [9999]


@pytest.mark.parametrize("num_held_tokens", [64, 40])
def test_b08_a_held_match_cannot_be_evicted(num_held_tokens: int) -> None:
    """The whole node, and a match that ends inside it; its partial block is held for the copy."""
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    block_ids = list(cache.dump()[0].block_ids)
    num_shared = num_held_tokens // 16
    handle = cache.acquire(stream("a", num_held_tokens) + stream("b", 1), NAMESPACE)
    assert handle.block_table[:num_shared] == block_ids[:num_shared]
    num_fenced = num_shared + len(handle.copies)
    assert cache.evict(100) == 4 - num_fenced
    cache.check()
    assert all(cache._pool.num_references(block_id) > 1 for block_id in block_ids[:num_fenced])
    cache.release(handle)
    cache.check()
    assert cache.evict(100) == num_fenced
    assert cache.stats().num_free == 20
    cache.check()


@pytest.mark.parametrize("prefill_chunk", [64, 16])
def test_b87_a_chain_is_evicted_from_its_tail(prefill_chunk: int) -> None:
    cache = PrefixCache(num_blocks=4)
    handle = start(cache, stream("a", 64))
    for num_written in range(prefill_chunk, 65, prefill_chunk):
        cache.publish(handle, num_written)
    cache.release(handle)
    hits = []
    for block_count in (1, 2, 3, 4):
        held = cache.acquire(stream("b", 16 * block_count), NAMESPACE)
        cache.check()
        hits.append(num_matched(cache, stream("a", 64) + X))
        cache.release(held)
    assert hits == [48, 32, 16, 0]


def test_b89_a_hit_refreshes_the_age_and_a_new_entry_counts_as_just_used() -> None:
    cache = PrefixCache(num_blocks=8)
    run(cache, stream("s", 32))
    for number in range(50):
        handle = start(cache, stream("s", 32) + X)
        assert handle.num_cached_tokens == 32
        cache.release(handle)
        run(cache, [20_000 + number] * 32)
    cache.evict(8)
    run(cache, stream("v", 32))
    cache.release(start(cache, stream("v", 32) + X))
    run(cache, stream("u", 32))
    cache.evict(2)
    assert (num_matched(cache, stream("v", 32) + X), num_matched(cache, stream("u", 32) + X)) == (0, 32)


def test_b90_evict_ends_with_what_was_asked_or_what_there_is() -> None:
    cache = PrefixCache(num_blocks=20)
    for letter in "abcdefghij":
        run(cache, stream(letter, 16))
    assert [cache.evict(0), cache.evict(3), cache.evict(100), cache.evict(100)] == [0, 3, 7, 0]
    handle = start(cache, stream("a", 64))
    cache.publish(handle, 64)
    assert cache.evict(100) == 0
    cache.check()
    assert cache.stats().num_evicted == 10


def test_evicting_a_negative_number_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks to evict is -1"):
        PrefixCache(num_blocks=1).evict(-1)


def test_b126_the_order_is_logical() -> None:
    for _ in range(20):
        cache = PrefixCache(num_blocks=6)
        for letter in "abcd":
            run(cache, stream(letter, 16))
        cache.release(start(cache, stream("a", 16) + X))  # a hit makes it the youngest
        victims = []
        left = set("abcd")
        for _ in range(4):
            cache.evict(1)
            gone = {letter for letter in left if num_matched(cache, stream(letter, 16) + X) == 0}
            victims += sorted(gone)
            left -= gone
        assert victims == ["b", "c", "d", "a"]


def test_a_hit_on_the_head_leaves_the_rest_as_old_as_it_was() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    run(cache, stream("b", 64))
    cache.release(start(cache, stream("a", 32) + X))
    cache.evict(4)
    assert (num_matched(cache, stream("a", 64) + X), num_matched(cache, stream("b", 64) + X)) == (32, 32)


def test_b55_own_hits_are_not_counted_as_room() -> None:
    cache = PrefixCache(num_blocks=5)
    run(cache, stream("a", 48))
    before = (cache.stats(), cache.dump())
    with pytest.raises(OutOfBlocksError, match="need 3 blocks, but only 2 are free and 0 can be evicted"):
        cache.acquire(stream("a", 48) + stream("b", 48), NAMESPACE)
    assert (cache.stats(), cache.dump()) == before
    cache.check()
    handle = cache.acquire(stream("a", 48) + stream("b", 17), NAMESPACE)
    assert handle.num_cached_tokens == 48
    assert (cache.stats().num_evicted, cache.stats().num_free) == (0, 0)
    cache.check()


def test_a_prompt_that_fits_the_pool_is_admitted_even_if_its_source_is_the_last_block() -> None:
    """Copying from the third block would need a fourth one; so it is computed instead."""
    cache = PrefixCache(num_blocks=3)
    run(cache, stream("a", 48))
    handle = cache.acquire(stream("a", 48), NAMESPACE)
    assert (handle.num_cached_tokens, handle.copies) == (32, [])
    cache.check()
    finish(cache, handle)
    assert num_matched(cache, stream("a", 48) + X) == 48


def test_b91_a_partial_match_holds_only_what_it_shares() -> None:
    draw = random.Random(91)
    for _ in range(200):
        length = draw.randrange(17, 80)
        divergence = draw.randrange(1, length)
        cache = PrefixCache(num_blocks=30)
        run(cache, stream("a", length))
        held = start(cache, stream("a", divergence) + stream("b", 32))
        shared = [node for node in cache.dump() if node.num_live_blocks]
        assert sum(node.num_live_blocks for node in shared) == divergence // 16
        run(cache, stream("a", divergence) + stream("c", 16))
        cache.release(held)
        num_cached = cache.stats().num_idle
        assert cache.evict(100) == num_cached
        assert cache.stats().num_free == 30
        cache.check()


def test_b52_counts_after_split_and_hold() -> None:
    cache = PrefixCache(num_blocks=20, block_size=1)
    held = start(cache, stream("a", 4))
    cache.publish(held, 4)
    assert (cache.stats().num_live, cache.stats().num_idle) == (4, 0)
    run(cache, stream("a", 2) + stream("b", 2))
    assert (cache.stats().num_live, cache.stats().num_idle) == (4, 2)
    cache.release(held)
    assert (cache.stats().num_live, cache.stats().num_idle) == (0, 6)
    cache.check()
