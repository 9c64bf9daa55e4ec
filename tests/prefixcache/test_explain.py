"""Explain: why a prompt missed, with the numbers, and where it leaves what is cached."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import NAMESPACE, finish, run, start
from support.cache_state import observed
from support.token_streams import stream

from prefixcache import (
    Divergence,
    Elsewhere,
    Explanation,
    InvalidArgumentError,
    Loss,
    MissCause,
    Namespace,
    PrefixCache,
    Tombstone,
)

OTHER_TENANT = Namespace("model", "other", is_publisher=True)
OTHER_SALT = Namespace("model", "tenant", salt="pepper")
OTHER_MODEL = Namespace("model@2", "tenant")
OTHER_ADAPTER = Namespace("model", "tenant", adapter="lora")
A, Z = stream("a", 64), stream("z", 64)


class Cache(PrefixCache):
    """A cache whose clock is a number."""

    def __init__(
        self, *, num_blocks: int = 20, policy: str = "lru", history_capacity: int | None = None
    ) -> None:
        self.now = 0.0
        super().__init__(
            num_blocks=num_blocks,
            policy=policy,
            history_capacity=history_capacity,
            clock=lambda: self.now,
        )


def explained(
    cache: PrefixCache, prompt: Sequence[int], namespace: Namespace = NAMESPACE, num_public_tokens: int = 0
) -> Explanation:
    """Changes nothing, and agrees with `match`."""
    before = observed(cache)
    explanation = cache.explain(prompt, namespace, num_public_tokens=num_public_tokens)
    assert observed(cache) == before
    match = cache.match(prompt, namespace, num_public_tokens=num_public_tokens)
    assert explanation.num_cached_tokens == match.num_tokens
    assert explanation.num_prompt_tokens == len(prompt)
    assert (explanation.divergence is None) == (explanation.cause is MissCause.NONE)
    return explanation


def cause_of(cache: PrefixCache, prompt: Sequence[int], namespace: Namespace = NAMESPACE) -> MissCause:
    return explained(cache, prompt, namespace).cause


def test_nothing_is_missing_when_all_but_the_last_token_is_cached() -> None:
    cache = Cache()
    run(cache, A[:40])
    assert explained(cache, A[:40]) == Explanation(
        num_prompt_tokens=40,
        num_cached_tokens=39,
        divergence=None,
        cause=MissCause.NONE,
        lost=None,
        held_by=None,
    )
    assert cause_of(Cache(), A[:1]) is MissCause.NONE
    with pytest.raises(InvalidArgumentError, match="the prompt is empty"):
        Cache().explain([], NAMESPACE)


def test_never_seen() -> None:
    cache = Cache()
    assert explained(cache, A) == Explanation(
        num_prompt_tokens=64,
        num_cached_tokens=0,
        divergence=Divergence(position=0, prompt_token=A[0], cached_token=None),
        cause=MissCause.NEVER_SEEN,
        lost=None,
        held_by=None,
    )
    run(cache, A[:32])
    assert cause_of(cache, A[:32] + Z) is MissCause.NEVER_SEEN


def test_below_a_block() -> None:
    cache = Cache()
    run(cache, A)
    for num_more in (2, 15):  # one more is always computed
        explanation = explained(cache, A[:16] + Z[:num_more])
        assert explanation.cause is MissCause.BELOW_BLOCK
        assert explanation.divergence == (16, Z[0], A[16])
    assert cause_of(cache, A[:16] + Z[:16]) is MissCause.NEVER_SEEN
    assert cause_of(cache, Z[:15]) is MissCause.BELOW_BLOCK


def test_evicted_when_by_which_policy_and_for_whom() -> None:
    cache = Cache(num_blocks=8, policy="fifo")
    run(cache, A)
    run(cache, stream("b", 16))
    cache.now = 12.5
    run(cache, stream("c", 16 * 5), OTHER_TENANT)
    explanation = explained(cache, A)
    assert (explanation.num_cached_tokens, explanation.cause) == (32, MissCause.EVICTED)
    assert explanation.lost == Tombstone(
        loss=Loss.EVICTED,
        tick=3,
        seconds=12.5,
        policy="fifo",
        lost_for="other",
        num_blocks=2,
        queue=0,
        turn=0,
    )


def test_evicted_for_nobody() -> None:
    cache = Cache()
    run(cache, A)
    cache.evict(1)
    lost = explained(cache, A).lost
    assert lost is not None
    assert (lost.lost_for, lost.num_blocks, lost.policy) == ("", 1, "lru")


def test_what_is_lost_piece_by_piece_is_told_as_one() -> None:
    cache = Cache()
    run(cache, A)
    for num_lost in (1, 2, 3, 4):
        cache.now += 1
        cache.evict(1)
        explanation = explained(cache, A + Z)
        assert explanation.num_cached_tokens == 64 - 16 * num_lost
        assert explanation.lost is not None
        assert (explanation.lost.num_blocks, explanation.lost.seconds) == (num_lost, num_lost)


def test_what_came_back_and_was_lost_again_was_lost_the_second_time() -> None:
    cache = Cache()
    for seconds in (1.0, 2.0):
        run(cache, A)
        assert cause_of(cache, A) is MissCause.NONE
        cache.now = seconds
        cache.evict(4)
        lost = explained(cache, A).lost
        assert lost is not None
        assert (lost.seconds, lost.tick) == (seconds, int(seconds))


@pytest.mark.parametrize("policy", ["lru", "slru", "arc", "cost", "auto"])
def test_the_name_of_the_policy_is_told(policy: str) -> None:
    cache = Cache(policy=policy)
    run(cache, A)
    cache.evict(1)
    lost = explained(cache, A).lost
    assert lost is not None
    assert lost.policy == policy


def test_expired_after_a_pin() -> None:
    cache = Cache()
    run(cache, A)
    cache.pin(A[:32], NAMESPACE, ttl_seconds=10)
    cache.now = 9.0
    assert cache.evict(20) == 2
    assert cause_of(cache, A) is MissCause.EVICTED
    cache.now = 10.0
    assert cache.evict(20) == 2
    explanation = explained(cache, A)
    assert (explanation.num_cached_tokens, explanation.cause) == (0, MissCause.EXPIRED)
    assert explanation.lost is not None
    assert (explanation.lost.loss, explanation.lost.seconds) == (Loss.EXPIRED, 10.0)


def test_a_pin_that_was_ended_or_whose_prefix_was_used_since_has_not_expired() -> None:
    cache = Cache()
    run(cache, A)
    cache.end_pin(cache.pin(A, NAMESPACE, ttl_seconds=10))
    cache.evict(20)
    assert cause_of(cache, A) is MissCause.EVICTED
    run(cache, A)
    cache.pin(A, NAMESPACE, ttl_seconds=10)
    cache.now = 30.0
    run(cache, A + Z[:1])
    cache.evict(20)
    assert cause_of(cache, A) is MissCause.EVICTED


@pytest.mark.parametrize(("seconds", "cause"), [(60.0, MissCause.EXPIRED), (inf, MissCause.EVICTED)])
def test_expired_after_a_priority(seconds: float, cause: MissCause) -> None:
    cache = Cache()
    handle = cache.acquire(A, NAMESPACE, priority=1, priority_seconds=seconds)
    finish(cache, handle)
    cache.now = 60.0
    cache.evict(20)
    assert cause_of(cache, A) is cause


@pytest.mark.parametrize(
    ("owner", "cause"),
    [
        (OTHER_TENANT, MissCause.OTHER_TENANT),
        (OTHER_SALT, MissCause.OTHER_SCOPE),
        (OTHER_MODEL, MissCause.OTHER_MODEL),
        (OTHER_ADAPTER, MissCause.OTHER_MODEL),
    ],
)
def test_held_by_another_owner(owner: Namespace, cause: MissCause) -> None:
    cache = Cache()
    run(cache, A, owner)
    explanation = explained(cache, A + Z)
    assert (explanation.num_cached_tokens, explanation.cause) == (0, cause)
    assert explanation.held_by == Elsewhere(owner.model, owner.adapter, owner.tenant, 64)
    assert explanation.lost is None
    assert explanation.divergence == (0, A[0], None)


def test_of_several_holders_the_nearest_is_told() -> None:
    cache = Cache(num_blocks=40)
    causes = []
    for owner, num_tokens in ((OTHER_MODEL, 64), (OTHER_TENANT, 48), (OTHER_SALT, 16), (OTHER_SALT, 32)):
        run(cache, A[:num_tokens], owner)
        explanation = explained(cache, A)
        assert explanation.held_by == Elsewhere(owner.model, owner.adapter, owner.tenant, min(num_tokens, 48))
        causes.append(explanation.cause)
    assert causes == [
        MissCause.OTHER_MODEL,
        MissCause.OTHER_TENANT,
        MissCause.OTHER_SCOPE,
        MissCause.OTHER_SCOPE,
    ]


def test_who_has_no_more_of_it_than_the_asker_is_not_told() -> None:
    cache = Cache(num_blocks=40)
    run(cache, A[:32])
    run(cache, A[:32], OTHER_TENANT)
    assert explained(cache, A).cause is MissCause.NEVER_SEEN
    assert explained(cache, A).held_by is None
    run(cache, A[:48], OTHER_TENANT)
    assert explained(cache, A).cause is MissCause.OTHER_TENANT


def test_another_tenants_continuation_of_a_public_prefix_is_told() -> None:
    cache = Cache()
    run(cache, stream("s", 32) + A, OTHER_TENANT, num_public_tokens=32)
    explanation = explained(cache, stream("s", 32) + A)
    assert (explanation.num_cached_tokens, explanation.cause) == (32, MissCause.OTHER_TENANT)
    assert explanation.held_by == Elsewhere("model", "", "other", 80)
    assert explanation.divergence == (32, A[0], None)


def test_ones_own_private_copy_of_what_is_declared_public_is_another_scope() -> None:
    cache = Cache()
    run(cache, A)
    explanation = explained(cache, A + Z, num_public_tokens=64)
    assert (explanation.num_cached_tokens, explanation.cause) == (0, MissCause.OTHER_SCOPE)
    assert explanation.held_by == Elsewhere("model", "", "tenant", 64)


def test_computed_by_a_request_without_the_cache() -> None:
    cache = Cache()
    run(cache, A[:16])
    cache.now = 3.0
    cache.release(cache.acquire(A, OTHER_TENANT, use_cache=False))
    cache.release(cache.acquire(A, NAMESPACE, use_cache=False))
    explanation = explained(cache, A)
    assert (explanation.num_cached_tokens, explanation.cause) == (16, MissCause.CACHE_OFF)
    assert explanation.lost is not None
    assert (explanation.lost.loss, explanation.lost.lost_for) == (Loss.CACHE_OFF, "tenant")
    assert (explanation.lost.tick, explanation.lost.seconds, explanation.lost.policy) == (3, 3.0, "")
    assert cause_of(cache, A, OTHER_TENANT) is MissCause.CACHE_OFF
    run(cache, A)
    cache.evict(4)
    assert cause_of(cache, A) is MissCause.EVICTED


def test_what_happened_to_ones_own_blocks_comes_before_who_else_has_them() -> None:
    cache = Cache()
    run(cache, A)
    cache.evict(4)
    run(cache, A, OTHER_TENANT)
    explanation = explained(cache, A)
    assert (explanation.cause, explanation.held_by) == (MissCause.EVICTED, None)


@pytest.mark.parametrize("history_capacity", [0, 1, 3, 12, 20])
def test_the_history_is_bounded_and_what_is_forgotten_was_never_seen(history_capacity: int) -> None:
    cache = Cache(num_blocks=8, history_capacity=history_capacity)
    prompts = [[number] * 16 for number in range(12)]
    for prompt in prompts:
        run(cache, prompt)
        cache.evict(1)
    num_remembered = min(12, history_capacity)
    assert len(cache._history) == num_remembered
    causes = [cause_of(cache, prompt) for prompt in prompts]
    assert causes == [MissCause.NEVER_SEEN] * (12 - num_remembered) + [MissCause.EVICTED] * num_remembered


def test_the_history_is_bounded_by_default() -> None:
    cache = PrefixCache(num_blocks=64, block_size=1)
    for token in range(5000):
        handle = cache.acquire([token], NAMESPACE)
        cache.publish(handle, 1)
        cache.release(handle)
    assert cache.stats().num_evicted == 5000 - 64
    assert len(cache._history) == 4096 + 64 // 16


@pytest.mark.parametrize(
    ("prompt", "divergence"),
    [
        (A[:20] + Z, (20, Z[0], A[20])),  # inside a run
        (A[:32] + Z, (32, Z[0], A[32])),  # inside a run, at a chunk's border
        (A[:48] + Z, (48, Z[0], A[48])),
        (A + Z, (64, Z[0], None)),  # where the cached prompt ends
        (Z, (0, Z[0], A[0])),  # at the first token; the nearest cached prompt is another one
    ],
)
def test_where_a_prompt_leaves_a_cached_one(
    prompt: list[int], divergence: tuple[int, int, int | None]
) -> None:
    cache = Cache()
    run(cache, A)
    assert explained(cache, prompt).divergence == divergence


def test_where_a_prompt_leaves_a_tail_and_siblings() -> None:
    cache = Cache(num_blocks=40)
    b, c = stream("b", 20), stream("c", 20)
    run(cache, A[:16] + b)
    run(cache, A[:16] + c)
    assert explained(cache, A[:16] + b[:4] + Z).divergence == (20, Z[0], b[4])
    assert explained(cache, A[:16] + c[:16] + Z).divergence == (32, Z[0], c[16])
    assert explained(cache, A[:16] + c + Z).divergence == (36, Z[0], None)
    between = explained(cache, A[:16] + Z).divergence
    assert between in [(16, Z[0], b[0]), (16, Z[0], c[0])]


def test_a_private_tail_that_ends_does_not_hide_the_public_run_that_goes_on() -> None:
    cache = Cache()
    run(cache, A[:8])
    run(cache, A[:16], OTHER_TENANT, num_public_tokens=16)
    run(cache, A[:8])
    assert explained(cache, A[:8] + Z).divergence == (8, Z[0], A[8])


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@settings(deadline=None)
@given(cached=st.lists(prompts, max_size=5), asked=prompts, block_size=st.sampled_from([1, 4]))
def test_both_tokens_at_the_divergence_are_those_of_a_nearest_cached_prompt(
    cached: list[list[int]], asked: list[int], block_size: int
) -> None:
    cache = PrefixCache(num_blocks=256, block_size=block_size)
    for prompt in cached:
        run(cache, prompt)
    divergence = explained(cache, asked).divergence
    num_common = max([len_of_common(prompt, asked[:-1]) for prompt in cached], default=0)
    if num_common == len(asked) - 1:
        assert divergence is None
        return
    nearest = [prompt for prompt in cached if len_of_common(prompt, asked[:-1]) == num_common]
    next_tokens = {prompt[num_common] for prompt in nearest if len(prompt) > num_common}
    assert divergence is not None
    assert (divergence.position, divergence.prompt_token) == (num_common, asked[num_common])
    assert divergence.cached_token in (next_tokens or {None})


def len_of_common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(one), len(other)))


def test_b129_a_turn_that_is_rendered_differently_shows_where_it_begins_to() -> None:
    """Token-granular: all 100 tokens of the system prompt are cached, 96 of them by sharing."""
    cache = Cache(num_blocks=40)
    system, user, thinking, answer = [*stream("s", 97), 1, 2, 3], stream("u", 20), [7] * 5, stream("v", 30)
    handle = start(cache, system + user)
    cache.extend(handle, thinking + answer)
    cache.complete_copies(handle)
    finish(cache, handle)
    turn_2 = [*system, 8, *user, *answer, *stream("w", 10)]
    explanation = explained(cache, turn_2)
    assert explanation.num_cached_tokens == 100
    assert explanation.divergence == (100, 8, user[0])
    assert explanation.cause is MissCause.NEVER_SEEN
    assert len(cache.match(turn_2, NAMESPACE).block_ids) == 6
    without_thinking = system + user + answer
    assert explained(cache, without_thinking).divergence == (120, answer[0], 7)
