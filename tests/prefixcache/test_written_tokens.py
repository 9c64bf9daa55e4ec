"""How many tokens a publish puts into the tree that were not there."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import NAMESPACE, start
from support.token_streams import stream

from prefixcache import PrefixCache

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def published(cache: PrefixCache, token_ids: list[int], *, include_tail: bool = True) -> int:
    handle = start(cache, token_ids)
    cache.complete_copies(handle)
    num_written = cache.publish(handle, len(token_ids), include_tail=include_tail)
    cache.release(handle)
    cache.check()
    return num_written


def test_whole_blocks_and_the_tail_count_and_nothing_twice() -> None:
    cache = PrefixCache(num_blocks=20)
    assert published(cache, stream("a", 40), include_tail=False) == 32
    assert published(cache, stream("a", 40)) == 8
    assert published(cache, stream("a", 40)) == 0
    assert published(cache, stream("a", 48)) == 8
    assert published(cache, stream("a", 8)) == 0
    assert published(cache, stream("a", 20) + stream("b", 20)) == 20


def test_what_stays_out_of_the_tree_does_not_count() -> None:
    cache = PrefixCache(num_blocks=20, chunk_hash=lambda chunk: 7)
    assert published(cache, stream("a", 32)) == 32
    assert published(cache, stream("b", 32)) == 0  # another chunk with its hash has its place
    assert published(cache, stream("a", 8)) == 0
    handle = cache.acquire(stream("s", 32), NAMESPACE, use_cache=False)
    assert cache.publish(handle, 32) == 0


@settings(max_examples=60, deadline=None)
@given(prompts=st.lists(TOKENS, min_size=1, max_size=8), first=st.integers(0, 40))
def test_a_publish_counts_what_the_longest_match_lacked(prompts: list[list[int]], first: int) -> None:
    cache = PrefixCache(num_blocks=200, block_size=4)
    for i, prompt in enumerate(prompts):
        num_known = max((_num_common(prompt, other) for other in prompts[:i]), default=0)
        handle = start(cache, prompt)
        cache.complete_copies(handle)
        num_written = cache.publish(handle, min(first, len(prompt)))
        num_written += cache.publish(handle, len(prompt), include_tail=True)
        assert num_written == len(prompt) - num_known
        cache.release(handle)
        cache.check()


def _num_common(left: list[int], right: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
