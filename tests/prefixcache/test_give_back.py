"""Blocks that a window has left behind are given back while their sequence runs."""

import pytest

from prefixcache import HOLE, CacheHandle, InvalidArgumentError, Namespace, PendingCopiesError, PrefixCache

BLOCK_SIZE = 4
MINE = Namespace("model", "tenant")


def running(cache: PrefixCache, num_prompt_tokens: int, num_output_tokens: int) -> CacheHandle:
    """A sequence whose prompt is published and whose output is not."""
    handle = cache.acquire(range(num_prompt_tokens), MINE)
    cache.publish(handle, num_prompt_tokens)
    cache.extend(handle, range(100, 100 + num_output_tokens))
    return handle


def test_blocks_that_nobody_can_find_are_free_at_once():
    cache = PrefixCache(num_blocks=10, block_size=BLOCK_SIZE)
    handle = running(cache, 8, 20)
    assert cache.give_back(handle, 9, 23) == 2  # rows 12 .. 19: only whole blocks
    assert handle.block_table[3:5] == [HOLE, HOLE]
    assert HOLE not in handle.block_table[:3] + handle.block_table[5:]
    assert cache.stats().num_free == 10 - 7 + 2
    assert cache.stats().num_live_unshared == 5
    assert cache.give_back(handle, 9, 23) == 0
    cache.check()


def test_a_cached_prompt_is_kept_until_the_window_has_left_all_of_it():
    cache = PrefixCache(num_blocks=10, block_size=BLOCK_SIZE)
    handle = running(cache, 16, 8)
    assert cache.give_back(handle, 4, 12) == 0
    assert cache.stats().num_idle == 0
    assert cache.give_back(handle, 4, 16) == 3
    assert cache.stats().num_idle == 3
    assert cache.match([*range(16), 99], MINE).num_tokens == 16  # others still find it
    assert cache.evict(10) == 3  # down to the sink, which the sequence still reads
    cache.check()


def test_what_is_behind_a_hole_is_never_published():
    cache = PrefixCache(num_blocks=12, block_size=BLOCK_SIZE)
    handle = running(cache, 8, 16)
    cache.give_back(handle, 8, 16)
    cache.publish(handle, handle.num_tokens, include_tail=True)
    tokens = handle.token_ids
    cache.release(handle)
    assert cache.match([*tokens, 99], MINE).num_tokens == 8
    assert cache.stats().num_free == 10
    cache.check()


def test_blocks_shared_with_a_fork_stay():
    """The fork may publish them all; a block in the tree is never held without those before it."""
    cache = PrefixCache(num_blocks=12, block_size=BLOCK_SIZE)
    handle = cache.acquire(range(17), MINE)
    fork = cache.fork(handle)
    assert cache.give_back(handle, 0, 8) == 0
    cache.publish(fork, 16)
    cache.release(fork)
    cache.check()


def test_wrong_ranges_and_pending_copies_are_refused():
    cache = PrefixCache(num_blocks=10, block_size=BLOCK_SIZE)
    handle = running(cache, 8, 4)
    with pytest.raises(InvalidArgumentError, match=r"\[0, 12\).*with 12; give a range that ends before"):
        cache.give_back(handle, 0, 12)
    with pytest.raises(InvalidArgumentError, match=r"\[3, 2\)"):
        cache.give_back(handle, 3, 2)
    follower = cache.acquire([*range(7), 50, 51], MINE)
    with pytest.raises(PendingCopiesError, match="before giving back"):
        cache.give_back(follower, 0, 4)
