"""Equal prompts computed side by side: the later one uses what the first has published."""

from __future__ import annotations

import pytest
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.token_streams import stream

from prefixcache import MissCause, PrefixCache, TenantQuota

A, B = stream("a", 64), stream("b", 64)


def test_adopting_is_a_use_once_a_request() -> None:
    cache = PrefixCache(num_blocks=40)
    handles = [start(cache, A) for _ in range(4)]
    for handle in handles:
        cache.publish(handle, 32)
        cache.publish(handle, 64)
        cache.check()
    assert [node.num_uses for node in cache.dump()] == [3, 3]
    for handle in handles:
        finish(cache, handle)
    assert [node.num_uses for node in cache.dump()] == [3, 3]


def test_what_is_adopted_gets_the_requests_priority() -> None:
    cache = PrefixCache(num_blocks=12, policy="lru")
    first = start(cache, A)
    second = cache.acquire(A, NAMESPACE, priority=5)
    finish(cache, first)
    finish(cache, second)
    run(cache, B)
    cache.evict(4)
    assert (num_matched(cache, [*A, 9]), num_matched(cache, [*B, 9])) == (64, 0)


def test_what_was_matched_is_not_used_again_by_publishing_behind_it() -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, A)
    run(cache, A + B)
    assert [node.num_uses for node in cache.dump()] == [1, 0]


def test_a_priority_that_has_ended_protects_nothing_from_the_tenants_own_ceiling() -> None:
    seconds = 0.0
    cache = PrefixCache(num_blocks=40, policy="lru", clock=lambda: seconds)
    cache.set_quota("tenant", TenantQuota(ceiling_blocks=5))
    handle = cache.acquire(A[:32], NAMESPACE, priority=5, priority_seconds=1)
    finish(cache, handle)
    run(cache, B[:32])
    seconds = 10.0
    run(cache, stream("c", 32))
    assert (num_matched(cache, [*A[:32], 9]), num_matched(cache, [*B[:32], 9])) == (16, 32)


@pytest.mark.parametrize("num_tokens", [32, 40, 48])
def test_a_cached_prompt_asked_for_with_the_cache_off_is_no_loss(num_tokens: int) -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, A[:48])
    cache.release(cache.acquire(A[:num_tokens], NAMESPACE, use_cache=False))
    assert cache.explain([*A[:48], 9], NAMESPACE).cause is MissCause.NONE
    assert cache.explain([*A[:64], 9], NAMESPACE).lost is None
