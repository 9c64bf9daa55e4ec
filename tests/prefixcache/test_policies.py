"""Every policy against a simulation that looks through everything; priorities; output before prompt."""

from math import inf
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.naive_cache import NaiveCache, Prefix, naive_policy
from support.token_streams import stream

from prefixcache import POLICIES, PrefixCache
from prefixcache.eviction_policies import ArcPolicy, SegmentedPolicy

SIMPLE_POLICIES = ["lru", "fifo", "lfu", "slru", "arc", "cost"]
NUM_BLOCKS = 10  # of which 80 % are a whole number
X = [9999]


class Operation(NamedTuple):
    kind: str
    conversation: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_published_first: int
    priority: int
    seconds: float


operations = st.builds(
    Operation,
    kind=st.sampled_from(["serve"] * 30 + ["evict", "evict", "wait", "wait", "reset"]),
    conversation=st.integers(0, 5),
    num_prompt_tokens=st.integers(1, 6),
    num_output_tokens=st.integers(0, 2),
    num_published_first=st.integers(0, 6),
    priority=st.sampled_from([0] * 7 + [1, 1, 2]),
    seconds=st.sampled_from([inf, 1.0, 5.0]),
)


def conversation(number: int, num_tokens: int) -> list[int]:
    """Three each begin alike."""
    return [number // 3, *[number] * num_tokens][:num_tokens]


def cached_blocks(cache: PrefixCache) -> dict[Prefix, tuple[int, int, bool]]:
    """Every block of one token, with how its node was used."""
    paths: dict[int, Prefix] = {0: ()}
    found = {}
    for node in cache.dump():
        path = paths[node.parent_id]
        for token in node.token_ids:
            path = (*path, token)
            found[path] = (node.last_used, node.num_uses, node.is_output)
        paths[node.id] = path
    return found


def serve(
    cache: PrefixCache,
    prompt: list[int],
    output: list[int] | None = None,
    *,
    num_published_first: int = 0,
    priority: int = 0,
    priority_seconds: float = inf,
) -> int:
    """One sequence after the other; returns how many tokens were cached."""
    handle = cache.acquire(prompt, NAMESPACE, priority=priority, priority_seconds=priority_seconds)
    cache.complete_copies(handle)
    cache.publish(handle, num_published_first)
    cache.publish(handle, len(prompt))
    cache.extend(handle, output or [])
    cache.publish(handle, handle.num_tokens, include_tail=True)
    cache.release(handle)
    return handle.num_cached_tokens


@pytest.mark.parametrize("policy", SIMPLE_POLICIES)
@settings(deadline=None, max_examples=40, phases=[Phase.generate])  # shrinking takes minutes
@given(trace=st.lists(operations, min_size=30, max_size=80))
def test_every_victim_is_the_one_that_looking_through_everything_finds(
    policy: str, trace: list[Operation]
) -> None:
    """The leaf that is chosen loses as many blocks as are needed, before the policy is asked again."""
    naive = NaiveCache(NUM_BLOCKS, 3, naive_policy(policy))
    cache = PrefixCache(
        num_blocks=NUM_BLOCKS,
        block_size=1,
        policy=policy,
        history_capacity=3,
        clock=lambda: naive.now,
    )
    for kind, number, num_prompt_tokens, num_output_tokens, num_first, priority, seconds in trace:
        if kind == "serve":
            tokens = conversation(number, num_prompt_tokens + num_output_tokens)
            prompt, output = tokens[:num_prompt_tokens], tokens[num_prompt_tokens:]
            how = {
                "num_published_first": min(num_first, num_prompt_tokens),
                "priority": priority,
                "priority_seconds": seconds,
            }
            assert serve(cache, prompt, output, **how) == naive.serve(prompt, output, **how)
        elif kind == "evict":
            assert cache.evict(num_prompt_tokens) == min(num_prompt_tokens, len(naive.blocks()))
            naive.evict(num_prompt_tokens)
        elif kind == "wait":
            naive.now += min(seconds, 3.0)
        else:
            cache.reset()
            naive.reset()
        assert cached_blocks(cache) == {
            block: (run.last_used, run.num_uses, run.is_output) for block, run in naive.blocks().items()
        }
    cache.check()


def test_a_leaf_that_grows_changes_its_queue_as_a_whole() -> None:
    """It grows by blocks that are remembered, so all of it has been used again."""
    cache = PrefixCache(num_blocks=8, block_size=1, policy="arc")
    run(cache, [1, 2])
    cache.evict(1)
    cache.reset()
    serve(cache, [1, 2, 3], num_published_first=1)
    policy = cache._blocks._policy
    assert isinstance(policy, ArcPolicy)
    assert policy._num_cached == [0, 3]
    cache.evict(3)
    assert policy._num_cached == [0, 0]


@pytest.mark.parametrize("policy", ["slru", "arc"])
def test_blocks_are_counted_in_their_queues(policy: str) -> None:
    draw = Random(1)
    cache = PrefixCache(num_blocks=30, block_size=2, policy=policy)
    queues = cache._blocks._policy
    assert isinstance(queues, SegmentedPolicy | ArcPolicy)
    for number in range(400):
        tokens = conversation(draw.randrange(6), draw.randrange(1, 14))
        serve(cache, tokens, num_published_first=draw.randrange(len(tokens) + 1))
        cache.evict(draw.randrange(3))
        if number % 100 == 99:
            cache.reset()
        counts = [0, 0]
        for _, node in cache._tree.nodes():
            counts[node.queue] += len(node.block_ids)
        assert (queues._num_blocks if isinstance(queues, SegmentedPolicy) else queues._num_cached) == counts


def test_slru_protects_four_fifths_of_the_pool() -> None:
    for num_protected, victims in ((8, [(8,), (9,)]), (9, [(0,), (9,)])):
        cache = PrefixCache(num_blocks=10, block_size=1, policy="slru")
        for token in range(9):
            serve(cache, [token])
        for token in range(num_protected):
            cache.release(start(cache, [token, *X]))
        serve(cache, [9])
        for victim in victims:
            before = cached_blocks(cache).keys()
            assert cache.evict(1) == 1
            assert before - cached_blocks(cache).keys() == {victim}


@pytest.mark.parametrize("policy", ["auto", "lru", "lfu", "slru", "arc"])
def test_output_goes_before_a_prompt_of_the_same_age(policy: str) -> None:
    """Under fifo and cost no two leaves of a prompt and of output are equally old, or dear."""
    cache = PrefixCache(num_blocks=20, policy=policy)
    older, newer = start(cache, stream("a", 16)), start(cache, stream("b", 16))
    cache.extend(newer, stream("c", 16))
    for handle in (older, newer):
        finish(cache, handle)
    assert [node.last_used for node in cache.dump()] == [2, 2, 2]
    lost = []
    for _ in range(3):
        before = {node.token_ids[0] for node in cache.dump()}
        cache.evict(1)
        lost += before - {node.token_ids[0] for node in cache.dump()}
    assert lost == [stream(letter, 1)[0] for letter in "cab"]


def test_a_run_is_output_when_it_has_a_generated_token() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 40))
    assert [node.is_output for node in cache.dump()] == [False, False]  # the second is a tail
    cache = PrefixCache(num_blocks=20)
    handle = start(cache, stream("a", 40))
    cache.extend(handle, stream("b", 40))
    finish(cache, handle)
    kinds = {node.token_ids[0]: node.is_output for node in cache.dump()}
    assert kinds == {stream("a", 1)[0]: False, stream("a", 33)[32]: True}


def letters_left(cache: PrefixCache) -> str:
    return "".join(letter for letter in "abcd" if num_matched(cache, stream(letter, 16) + X) == 16)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_priority_holds_until_it_ends_and_then_the_policy_counts(policy: str) -> None:
    now = [0.0]
    caches = [PrefixCache(num_blocks=20, policy=policy, clock=lambda: now[0]) for _ in range(2)]
    for cache in caches:
        now[0] = 0.0
        serve(cache, stream("a", 16), priority=2, priority_seconds=60.0)
        serve(cache, stream("b", 16), priority=1)
        serve(cache, stream("c", 16))
        serve(cache, stream("d", 16), priority=-1)
    now[0] = 59.9
    assert [(caches[0].evict(1), letters_left(caches[0])) for _ in range(4)] == [
        (1, "abc"),
        (1, "ab"),
        (1, "a"),
        (1, ""),
    ]
    now[0] = 60.0
    assert [(caches[1].evict(1), letters_left(caches[1])) for _ in range(4)] == [
        (1, "abc"),
        (1, "bc"),
        (1, "b"),
        (1, ""),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_priority_counts_before_the_queue(policy: str) -> None:
    """What was used again is favoured by most policies, but not above a priority."""
    cache = PrefixCache(num_blocks=20, policy=policy)
    serve(cache, stream("b", 16))
    for _ in range(5):
        cache.release(start(cache, stream("b", 16) + X))
    serve(cache, stream("a", 16), priority=1)
    serve(cache, stream("c", 16), priority=1)
    assert [(cache.evict(1), letters_left(cache)) for _ in range(2)] == [(1, "ac"), (1, "c")]


@pytest.mark.parametrize(
    ("first", "second", "seconds", "is_kept"),
    [
        ((2, 60.0), (3, inf), 70.0, True),
        ((5, 60.0), (3, inf), 70.0, True),  # comes when the higher one has ended, looked at or not
        ((5, inf), (5, 10.0), 70.0, True),  # the longer promise of the two is kept
        ((5, 10.0), (5, inf), 70.0, True),
        ((0, inf), (5, 100.0), 70.0, True),
        ((0, inf), (5, 10.0), 90.0, False),
        ((5, 60.0), (0, inf), 70.0, False),
        ((5, 100.0), (3, inf), 99.0, True),
        ((5, 100.0), (3, inf), 100.0, False),  # a lower one that comes meanwhile is not remembered
    ],
)
def test_what_two_requests_have_promised(
    first: tuple[int, float], second: tuple[int, float], seconds: float, is_kept: bool
) -> None:
    """The second comes at 65; then something of priority 1, and one of the two has to go."""
    now = [0.0]
    cache = PrefixCache(num_blocks=20, policy="lru", clock=lambda: now[0])
    serve(cache, stream("a", 16), priority=first[0], priority_seconds=first[1])
    now[0] = 65.0
    cache.release(
        cache.acquire(stream("a", 16) + X, NAMESPACE, priority=second[0], priority_seconds=second[1])
    )
    serve(cache, stream("b", 16), priority=1)
    now[0] = seconds
    cache.evict(1)
    assert letters_left(cache) == ("a" if is_kept else "b")
