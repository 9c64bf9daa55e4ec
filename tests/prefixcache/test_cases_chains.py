"""B84: chains of very many nodes. Nothing recurses, and what was quadratic would not end in time."""

import gc
import sys
from pathlib import Path

import pytest
from support.cache_runs import NAMESPACE

from prefixcache import MissCause, PrefixCache, pack_tokens
from prefixcache.radix_node import RadixNode

pytestmark = pytest.mark.timeout(60)


def chain_of(num_nodes: int, *, num_spare_blocks: int = 20) -> PrefixCache:
    """One prompt of `num_nodes` chunks, each in a node of its own.

    Requests that part from it at every chunk would leave the same tree, in quadratic time. So it
    is cut directly, the right halves first, which copies each edge only so often as it is halved.
    """
    cache = PrefixCache(num_blocks=num_nodes + num_spare_blocks, block_size=1, policy="lru")
    handle = cache.acquire(pack_tokens(range(num_nodes)), NAMESPACE)
    cache.publish(handle, num_nodes)
    cache.release(handle)
    ((_, node),) = cache._tree.nodes()
    uncut = [(node, 0, num_nodes)]
    while uncut:
        node, start, end = uncut.pop()
        if end - start > 1:
            middle = (start + end) // 2
            upper = cache._tree.split(node, middle - start)
            uncut += [(upper, start, middle), (node, middle, end)]
    return cache


@pytest.mark.parametrize("num_nodes", [6000, 100_000])
def test_b84_a_long_chain_can_be_matched_inserted_into_split_and_evicted(num_nodes: int) -> None:
    assert num_nodes > sys.getrecursionlimit()
    cache = chain_of(num_nodes)
    cache.check()
    tokens, half = list(range(num_nodes)), num_nodes // 2
    nodes = cache.dump()
    assert [node.token_ids for node in nodes] == [(token,) for token in tokens]
    assert [node.parent_id for node in nodes[1:]] == [node.id for node in nodes[:-1]]
    assert cache.stats().num_nodes == num_nodes
    assert cache.match([*tokens, num_nodes], NAMESPACE).num_tokens == num_nodes
    pin = cache.pin(tokens[: half // 2], NAMESPACE)
    held = cache.acquire([*tokens[:half], num_nodes, num_nodes], NAMESPACE)
    assert held.num_cached_tokens == half
    cache.publish(held, half + 2)
    forked = cache.fork(held)
    cache.extend(forked, [1])
    cache.publish(forked, half + 3)
    cache.check()
    assert cache.evict(2 * num_nodes) == num_nodes - half
    cache.release(held)
    cache.release(forked)
    assert cache.evict(1) == 1
    assert cache.evict(2 * num_nodes) == half + 2 - half // 2
    cache.end_pin(pin)
    assert cache.evict(2 * num_nodes) == half // 2
    cache.check()
    assert (cache.dump(), cache.stats().num_free) == ([], cache.num_blocks)


@pytest.mark.parametrize("num_nodes", [6000, 100_000])
def test_b84_a_long_chain_can_be_told_saved_and_restored(num_nodes: int, tmp_path: Path) -> None:
    cache = chain_of(num_nodes)
    parent_of = cache.block_keys()
    assert len(parent_of) == num_nodes
    explanation = cache.explain(pack_tokens([*range(num_nodes), 7, 7]), NAMESPACE)
    assert (explanation.num_cached_tokens, explanation.cause) == (num_nodes, MissCause.NEVER_SEEN)
    cache.save(tmp_path / "chain")
    restored = PrefixCache(num_blocks=num_nodes, block_size=1, policy="lru")
    assert restored.restore(tmp_path / "chain") == num_nodes
    assert restored.stats().num_nodes == num_nodes
    assert restored.block_keys() == parent_of
    assert restored.match(pack_tokens(range(num_nodes)), NAMESPACE).num_tokens == num_nodes - 1


@pytest.mark.parametrize("num_nodes", [6000, 100_000])
def test_b84_a_long_chain_can_be_forgotten(num_nodes: int) -> None:
    cache = chain_of(num_nodes)
    held = cache.acquire(pack_tokens(range(num_nodes)), NAMESPACE)
    cache.reset()
    cache.release(held)
    assert (cache.dump(), cache.stats().num_free) == ([], cache.num_blocks)
    cache.check()
    everything = cache.acquire(pack_tokens([1] * cache.num_blocks), NAMESPACE)
    assert sorted(everything.block_table) == list(range(cache.num_blocks))


def test_b84_a_cache_with_a_long_chain_can_be_deleted() -> None:
    gc.collect()
    num_others = num_nodes_in_memory()
    cache = chain_of(100_000)
    assert num_nodes_in_memory() >= num_others + 100_000
    del cache
    gc.collect()
    assert num_nodes_in_memory() <= num_others


def num_nodes_in_memory() -> int:
    return sum(type(object_) is RadixNode for object_ in gc.get_objects())
