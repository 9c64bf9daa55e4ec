"""Structure of the tree: growing, splitting, tails, neighbours, collisions."""

import random

from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.token_streams import stream

from prefixcache import NodeDump, PrefixCache

X = [9999]


def shape(cache: PrefixCache) -> list[tuple[int, int, int]]:
    """Number, parent's number and tokens of each node, in the order of the dump."""
    nodes = cache.dump()
    numbers = {0: 0} | {node.id: number for number, node in enumerate(nodes, 1)}
    return [(numbers[node.id], numbers[node.parent_id], len(node.token_ids)) for node in nodes]


def tails(cache: PrefixCache) -> list[NodeDump]:
    return [node for node in cache.dump() if len(node.token_ids) % cache.block_size]


def test_a_leaf_grows_in_place_for_the_request_that_made_it() -> None:
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 64))
    for num_written in (16, 32, 64):
        cache.publish(handle, num_written)
        cache.check()
        assert shape(cache) == [(1, 0, num_written)]
    cache.release(handle)
    run(cache, stream("a", 96))
    assert shape(cache) == [(1, 0, 64), (2, 1, 32)]


def test_a_divergence_splits_the_node_behind_the_last_common_chunk() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    run(cache, stream("a", 40) + stream("b", 24))
    assert sorted(shape(cache)) == [(1, 0, 32), (2, 1, 32), (3, 1, 32)]
    assert num_matched(cache, stream("a", 64) + X) == 64
    assert num_matched(cache, stream("a", 40) + stream("b", 24) + X) == 64


def test_match_neither_splits_nor_ages() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    before = (cache.dump(), cache.stats())
    match = cache.match(stream("a", 40) + X, NAMESPACE)
    assert (match.block_ids, match.num_tokens, match.partial) == ([0, 1], 40, (2, 8))
    assert (cache.dump(), cache.stats()) == before


def test_a_longer_tail_supersedes_a_shorter_one_and_a_whole_chunk_supersedes_both() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 20))
    assert [node.token_ids for node in tails(cache)] == [tuple(stream("a", 20, start=16))]
    run(cache, stream("a", 25))
    assert [node.token_ids for node in tails(cache)] == [tuple(stream("a", 25, start=16))]
    run(cache, stream("a", 22))  # covered already
    assert [node.token_ids for node in tails(cache)] == [tuple(stream("a", 25, start=16))]
    assert cache.stats().num_idle == 2
    run(cache, stream("a", 32))
    assert tails(cache) == []
    assert [len(node.token_ids) for node in cache.dump()] == [16, 16]
    assert cache.stats().num_idle == 2


def test_a_tail_that_a_whole_chunk_covers_is_not_inserted() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 64))
    run(cache, stream("a", 40))
    assert cache.stats().num_idle == 4
    assert tails(cache) == []


def test_different_tails_stand_side_by_side() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 24))
    run(cache, stream("a", 20) + stream("b", 4))
    assert len(tails(cache)) == 2
    assert num_matched(cache, stream("a", 24) + X) == 24
    assert num_matched(cache, stream("a", 20) + stream("b", 4) + X) == 24
    assert num_matched(cache, stream("a", 20) + stream("c", 4) + X) == 20


def test_the_best_of_many_siblings_is_found() -> None:
    """The naive maximum over all siblings is the right answer."""
    draw = random.Random(1)
    cache = PrefixCache(num_blocks=600, block_size=4)
    siblings = [[draw.randrange(4) for _ in range(4)] for _ in range(200)]
    for tokens in siblings:
        run(cache, stream("z", 4) + tokens)
    for _ in range(200):
        query = [draw.randrange(5) for _ in range(4)]
        common = max(next((i for i in range(4) if tokens[i] != query[i]), 4) for tokens in siblings)
        assert num_matched(cache, stream("z", 4) + query + X) == 4 + common


def test_b39_equal_chunks_behind_other_prefixes_are_other_blocks() -> None:
    cache = PrefixCache(num_blocks=20)
    z = stream("z", 16)
    run(cache, stream("a", 16) + z)
    assert num_matched(cache, stream("b", 16) + z + X) == 0
    run(cache, stream("b", 16) + z)
    assert cache.stats().num_idle == 4
    run(cache, z + z)
    assert cache.stats().num_idle == 6
    assert num_matched(cache, z + X) == 16


def test_b41_chunked_prefill_publishes_the_same_prefix_at_any_chunk_size() -> None:
    prompt = stream("a", 200)
    for chunk in (7, 16, 33, 100, 200):
        cache = PrefixCache(num_blocks=40)
        handle = start(cache, prompt)
        for num_written in [*range(chunk, 200, chunk), 200]:
            cache.publish(handle, num_written)
            cache.check()
        cache.release(handle)
        assert num_matched(cache, prompt + X) == 192
        assert cache.stats().num_idle == 12
        assert num_matched(cache, stream("a", 200, start=100) + X) == 0


def test_b57_less_than_a_block_makes_no_whole_node_and_no_empty_one() -> None:
    cache = PrefixCache(num_blocks=20)
    for length in (0, 1, 15):
        assert num_matched(cache, stream("a", length)) == 0
    assert cache.stats().num_nodes == 0
    handle = start(cache, stream("a", 15))
    cache.publish(handle, 15)
    cache.release(handle)
    assert cache.stats().num_idle == 0
    handle = start(cache, stream("a", 31))
    cache.publish(handle, 31)
    cache.release(handle)
    assert cache.stats().num_idle == 1
    cache.evict(1)
    run(cache, stream("a", 64))
    assert num_matched(cache, stream("a", 63)) == 62
    cache.check()


def test_b84_a_chain_of_6000_nodes_needs_no_recursion() -> None:
    cache = PrefixCache(num_blocks=6010, block_size=1)
    prompt = list(range(6000))
    run(cache, prompt)
    for length in range(5999, 0, -1):  # every divergence splits the chain once more
        cache.release(cache.acquire(prompt[:length] + X, NAMESPACE))
    cache.check()
    nodes = cache.dump()
    assert len(nodes) == 6000
    assert [node.token_ids for node in nodes] == [(token,) for token in prompt]
    assert num_matched(cache, prompt + X) == 6000
    held = start(cache, prompt[:3000] + X)
    assert held.num_cached_tokens == 3000
    cache.publish(held, 3001)
    cache.check()
    assert cache.evict(10_000) == 3000
    cache.check()
    finish(cache, held)
    assert cache.evict(1) == 1
    assert cache.evict(10_000) == 3000
    cache.check()
    assert (cache.dump(), cache.stats().num_free) == ([], 6010)
