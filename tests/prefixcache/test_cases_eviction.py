"""Cases of the kinds eviction and boundary: in which order blocks go, and how many a sequence needs."""

from math import ceil
from random import Random

import pytest
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.token_streams import stream

from prefixcache import POLICIES, OutOfBlocksError, PrefixCache

X = [9999]


@pytest.mark.parametrize("policy", POLICIES)
def test_b87_the_parent_of_a_cached_block_is_always_cached(policy: str) -> None:
    """A key that is chained from another block's names it as long as both are cached."""
    draw = Random(87)
    cache = PrefixCache(num_blocks=24, block_size=2, policy=policy)
    for _ in range(600):
        handle = start(cache, [draw.randrange(2) for _ in range(draw.randrange(1, 24))])
        if draw.random() < 0.5:
            cache.extend(handle, [draw.randrange(2) for _ in range(draw.randrange(8))])
        cache.publish(handle, handle.num_tokens, include_tail=draw.random() < 0.5)
        cache.release(handle)
        cache.evict(draw.randrange(3))
        parent_of = cache.block_keys()
        roots = {parent for parent in parent_of.values() if parent not in parent_of}
        assert len(roots) == (1 if parent_of else 0)  # where the one scope's paths start
    assert cache.stats().num_evicted > 500


@pytest.mark.parametrize("policy", POLICIES)
def test_b87_a_chain_goes_from_its_tail_under_every_policy(policy: str) -> None:
    cache = PrefixCache(num_blocks=8, policy=policy)
    run(cache, stream("a", 64))
    hits = []
    for num_blocks in (5, 6, 7, 8):
        handle = cache.acquire(stream("b", 16 * num_blocks), NAMESPACE)
        cache.check()
        hits.append(num_matched(cache, stream("a", 64) + X))
        cache.release(handle)
    assert hits == [48, 32, 16, 0]


def test_b89_a_hit_keeps_a_prefix_alive_and_one_never_read_is_not_the_oldest() -> None:
    """As in the case, and through allocation: evictions happen because somebody needs room."""
    cache = PrefixCache(num_blocks=9, policy="lru")  # 8, and one for the prompt's own last token
    run(cache, stream("s", 32))
    for number in range(50):
        handle = start(cache, stream("s", 32) + X)
        assert handle.num_cached_tokens == 32
        cache.release(handle)
        run(cache, [20_000 + number] * 32)
    cache = PrefixCache(num_blocks=4, policy="lru")
    run(cache, stream("v", 16))
    cache.release(start(cache, stream("v", 16) + X))
    run(cache, stream("u", 16))
    cache.release(start(cache, stream("w", 48)))
    assert (num_matched(cache, stream("v", 16) + X), num_matched(cache, stream("u", 16) + X)) == (0, 16)


def test_b90_an_eviction_of_everything_or_of_nothing_ends() -> None:
    cache = PrefixCache(num_blocks=10)
    for letter in "abcdefghij":
        run(cache, stream(letter, 16))
    held = [cache.acquire([*stream(letter, 15), *X], NAMESPACE, use_cache=False) for letter in "abc"]
    assert cache.evict(10**9) == 7
    assert [cache.evict(num_blocks) for num_blocks in (0, 1, 10**9)] == [0, 0, 0]
    for handle in held:
        cache.release(handle)
    assert cache.stats().num_free == 10


@pytest.mark.parametrize("jump", [0.0, -3600.0])
def test_b126_victims_follow_a_counter_and_no_clock(jump: float) -> None:
    """The clock stands still, or goes back by an hour in the middle."""
    for _ in range(100):
        now = [7200.0]
        cache = PrefixCache(num_blocks=5, policy="lru", clock=lambda now=now: now[0])
        for letter in "abcd":
            run(cache, stream(letter, 16))
        now[0] += jump
        cache.release(start(cache, stream("a", 16) + X))
        start(cache, stream("z", 1))  # holds the fifth block from now on
        victims = []
        for number in range(4):
            before = {letter for letter in "abcd" if num_matched(cache, stream(letter, 16) + X)}
            start(cache, [30_000 + number])
            after = {letter for letter in "abcd" if num_matched(cache, stream(letter, 16) + X)}
            victims.append(before - after)
        assert victims == [{"b"}, {"c"}, {"d"}, {"a"}]


@pytest.mark.parametrize("length", range(1, 51))
def test_b38_a_sequence_has_exactly_the_blocks_of_its_rows(length: int) -> None:
    """After k outputs there are L + k - 1 rows: the last output's is written in the next step."""
    cache = PrefixCache(num_blocks=8)
    handle = start(cache, stream("a", length))
    for num_outputs in range(1, 41):
        assert len(handle.block_table) == ceil((length + num_outputs - 1) / 16)
        assert cache.stats().num_live == len(handle.block_table)
        cache.extend(handle, X)
    cache.check()


def test_b38_the_numbers_of_the_case() -> None:
    expected = {16: {1: 1, 2: 2, 17: 2, 18: 3}, 15: {1: 1, 2: 1, 3: 2}, 17: {1: 2}}
    for length, num_blocks_after in expected.items():
        handle = start(cache := PrefixCache(num_blocks=8), stream("a", length))
        found = {}
        for num_outputs in range(1, 19):
            found[num_outputs] = len(handle.block_table)
            cache.extend(handle, X)
        assert found | num_blocks_after == found


@pytest.mark.parametrize("num_outputs", [0, 1, 46, 47, 48, 100])
@pytest.mark.parametrize("include_tail", [True, False])
def test_b48_a_preempted_sequence_comes_back_for_the_tokens_it_lacks(
    num_outputs: int, include_tail: bool
) -> None:
    """With its tail published it lacks one token; without, those behind the last whole block."""
    cache = PrefixCache(num_blocks=8, block_size=256)
    handle = start(cache, stream("a", 465))
    tokens = stream("a", 465) + [50_000 + number for number in range(num_outputs)]
    cache.extend(handle, tokens[465:])
    cache.publish(handle, len(tokens), include_tail=include_tail)
    cache.release(handle)
    handle = cache.acquire(tokens, NAMESPACE, is_resumed=True)
    num_whole = len(tokens) // 256 * 256
    num_lacking = 1 if include_tail else max(1, len(tokens) - num_whole)
    assert len(tokens) - handle.num_cached_tokens == num_lacking
    if not num_outputs and not include_tail:
        assert (handle.num_cached_tokens, num_lacking) == (256, 209)
    cache.complete_copies(handle)
    finish(cache, handle)


def test_b55_a_request_is_admitted_exactly_when_its_own_hits_leave_it_room() -> None:
    """Every number of cached, free and new blocks; never an error in the middle of an allocation."""
    for num_cached in range(1, 6):
        for num_new in range(1, 7):
            cache = PrefixCache(num_blocks=6)
            run(cache, stream("a", 16 * num_cached))
            prompt = stream("a", 16 * num_cached) + [40_000 + number for number in range(16 * num_new)]
            if num_cached + num_new <= 6:
                handle = cache.acquire(prompt, NAMESPACE)
                assert handle.num_cached_tokens == 16 * num_cached
                assert cache.stats().num_evicted == 0
            else:
                before = (cache.stats(), cache.dump())
                with pytest.raises(OutOfBlocksError) as caught:
                    cache.acquire(prompt, NAMESPACE)
                assert caught.value.num_needed == num_new
                assert (caught.value.num_free, caught.value.num_idle) == (6 - num_cached, 0)
                assert (cache.stats(), cache.dump()) == before
            cache.check()


def test_b57_a_key_below_a_block_is_neither_found_nor_whole() -> None:
    """Our rule is token-granular: what is left of a prompt is kept as a tail, and copied from."""
    cache = PrefixCache(num_blocks=8)
    for length in (0, 1, 15):
        assert cache.match(stream("a", length), NAMESPACE) == ([], 0, None)
    assert cache.stats().num_nodes == 0
    run(cache, stream("a", 15))
    assert (num_matched(cache, stream("a", 15)), num_matched(cache, stream("a", 16))) == (14, 15)
    assert cache.block_keys() == {}
    run(cache, stream("a", 31))
    assert len(cache.block_keys()) == 1
    run(cache, stream("a", 64))
    assert num_matched(cache, stream("a", 63)) == 62
    assert len(cache.match(stream("a", 63), NAMESPACE).block_ids) == 3
