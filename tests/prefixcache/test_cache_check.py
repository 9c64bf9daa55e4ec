"""`check` finds what it claims to prove: each kind of damage breaks one invariant, and is noticed."""

from collections.abc import Callable

import pytest
from support.cache_runs import run, start
from support.token_streams import stream

from prefixcache import BlockId, CacheHandle, Namespace, PrefixCache
from prefixcache.radix_node import RadixNode

Damage = Callable[[PrefixCache, CacheHandle, CacheHandle], object]


def held_twice() -> tuple[PrefixCache, CacheHandle, CacheHandle]:
    """Two handles whose first two blocks are cached, on paths of their own; the third is not."""
    cache = PrefixCache(num_blocks=20)
    one, other = (start(cache, stream(letter, 40)) for letter in "ab")
    cache.publish(one, 40)
    cache.publish(other, 40)
    cache.check()
    return cache, one, other


def exchange_blocks(first: int, last: int) -> Damage:
    """All counts stay right."""

    def damage(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
        span = slice(first, last)
        one.block_table[span], other.block_table[span] = other.block_table[span], one.block_table[span]

    return damage


def reverse_cached_blocks(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
    one.block_table[:2] = reversed(one.block_table[:2])


def put_the_uncached_block_first(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
    one.block_table.insert(0, one.block_table.pop())


def change_a_token(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
    one.tokens[4 * 31] ^= 1


def change_the_tenant(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
    one.namespace = Namespace("model", "other")


def change_the_model(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
    one.namespace = Namespace("other model", "tenant")


def retain_once_more(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
    cache._blocks.retain(one.block_table)


def forget_a_handle(cache: PrefixCache, one: CacheHandle, other: CacheHandle) -> None:
    cache._handles._handles.remove(one)


@pytest.mark.parametrize(
    "damage",
    [
        exchange_blocks(0, 2),
        exchange_blocks(0, 1),
        exchange_blocks(1, 2),
        reverse_cached_blocks,
        put_the_uncached_block_first,
        change_a_token,
        change_the_tenant,
        change_the_model,
        retain_once_more,
        forget_a_handle,
    ],
)
def test_a_handle_that_is_not_on_its_path_is_found(damage: Damage) -> None:
    cache, one, other = held_twice()
    damage(cache, one, other)
    cache._blocks.check()  # not to be seen from below
    with pytest.raises(AssertionError):
        cache.check()


def test_uncached_blocks_may_be_exchanged() -> None:
    """So it is the cached ones that the test above is about."""
    cache, one, other = held_twice()
    exchange_blocks(2, 3)(cache, one, other)
    cache.check()


def hold_only_the_last_block(cache: PrefixCache, leaf: RadixNode) -> None:
    cache._blocks.retain(leaf.block_ids[-1:])


def take_out_of_the_eviction_order(cache: PrefixCache, leaf: RadixNode) -> None:
    cache._blocks._order.discard(leaf)


def use_in_the_future(cache: PrefixCache, leaf: RadixNode) -> None:
    leaf.last_used = 1000


def mark_a_block_that_is_not_in_the_tree(cache: PrefixCache, leaf: RadixNode) -> None:
    cache._pool.add_cached(cache._pool.allocate(1))


def forget_a_root(cache: PrefixCache, leaf: RadixNode) -> None:
    cache._tree._roots.clear()


def repeat_a_block(cache: PrefixCache, leaf: RadixNode) -> None:
    leaf.block_ids[0] = BlockId(leaf.block_ids[1])


@pytest.mark.parametrize(
    "damage",
    [
        hold_only_the_last_block,
        take_out_of_the_eviction_order,
        use_in_the_future,
        mark_a_block_that_is_not_in_the_tree,
        forget_a_root,
        repeat_a_block,
    ],
)
def test_pool_tree_and_eviction_order_out_of_step_are_found(
    damage: Callable[[PrefixCache, RadixNode], object],
) -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 32))
    ((_, leaf),) = cache._tree.nodes()
    damage(cache, leaf)
    with pytest.raises(AssertionError):
        cache._blocks.check()
