"""What a sample tells of caches of other sizes."""

import pytest
from support.cache_runs import NAMESPACE, run
from support.conversations import (
    Prompt,
    cache_of,
    conversations,
    fresh,
    num_hits,
    shared_prefixes,
    short_lived_conversations,
)
from support.token_streams import stream

from prefixcache import PrefixCache


def hit_ratio(num_blocks: float, policy: str, prompts: list[Prompt]) -> float:
    return num_hits(cache_of(int(num_blocks), policy), prompts) / sum(map(len, prompts))


def estimates(cache: PrefixCache) -> dict[float, float]:
    ratios = cache.estimate_hit_ratios()
    assert ratios is not None
    return ratios


def test_nothing_is_estimated_before_anything_was_asked_for() -> None:
    cache = PrefixCache(num_blocks=100)
    assert cache.estimate_hit_ratios() is None
    assert cache.policy_state().shadow_hit_ratios is None
    run(cache, stream("a", 64))
    assert cache.estimate_hit_ratios() == {0.5: 0, 1: 0, 2: 0, 4: 0}


def test_estimates_of_a_small_pool_are_exact() -> None:
    prompts = list(short_lived_conversations(400))
    cache = cache_of(240, "auto")
    num_hits(cache, prompts)
    assert cache.policy_state().credit_ticks == 0
    for size, ratio in estimates(cache).items():
        # The sampled pool counts the block of the spare token as one that can hold something.
        assert ratio == pytest.approx(hit_ratio(round(241 * size), "lru", prompts))


@pytest.mark.parametrize("num_blocks", [600, 1_000, 2_000, 5_000])
def test_estimates_of_a_large_pool_are_near_to_what_such_pools_hit(num_blocks: int) -> None:
    """Within 0.08, by 150 to 256 sampled blocks; what is asked for most is not overrated."""
    prompts = list(shared_prefixes(3_000))
    cache = cache_of(num_blocks, "auto")
    num_hits(cache, prompts)
    for size, ratio in estimates(cache).items():
        assert ratio == pytest.approx(hit_ratio(num_blocks * size, "auto", prompts), abs=0.08)


def test_estimates_follow_the_rule_in_force() -> None:
    cache = cache_of(1_100, "auto")
    num_hits(cache, conversations(3_000))
    state = cache.policy_state()
    assert state.credit_ticks
    assert state.shadow_hit_ratios is not None
    assert estimates(cache)[1] == state.shadow_hit_ratios["credit"] > 2 * state.shadow_hit_ratios["lru"]
    assert estimates(cache)[2] > 0.3


def test_estimates_forget_what_was_long_ago() -> None:
    cache = cache_of(100, "auto")
    hot = fresh(50)
    num_hits(cache, [hot] * 400)
    assert estimates(cache)[1] > 0.9
    num_hits(cache, (fresh(50) for _ in range(400)))
    assert estimates(cache)[1] < 0.05


def test_generated_tokens_are_held_but_not_asked_for() -> None:
    cache = PrefixCache(num_blocks=100)
    prompt = stream("p", 64)
    handle = cache.acquire(prompt, NAMESPACE)
    cache.extend(handle, stream("b", 65))
    cache.publish(handle, 128)
    cache.release(handle)
    run(cache, prompt + stream("b", 64) + stream("o", 16))
    # 4 missed, then 8 hit and 1 missed
    assert estimates(cache)[1] == pytest.approx(8 / 13)


def test_a_reset_empties_the_shadow_caches_and_keeps_what_was_learned() -> None:
    cache = cache_of(1_100, "auto")
    num_hits(cache, conversations(3_000))
    before = cache.policy_state()
    cache.reset()
    assert cache.policy_state() == before
    assert cache._sample is not None
    assert not cache._sample._cohort_of
    cache.check()
    prompt = fresh(500)
    assert num_hits(cache, [prompt, prompt]) == 500
    cache.check()


def test_the_sample_stays_small() -> None:
    cache = cache_of(2_000, "auto")
    for part in range(4):
        num_hits(cache, (fresh(12) for _ in range(1_000)))
        assert cache._sample is not None
        assert len(cache._sample._cohort_of) <= 8 * 256, part
        cache.check()


def test_equal_traffic_gives_equal_states() -> None:
    prompts = list(conversations(2_000))
    caches = [cache_of(900, "auto") for _ in range(2)]
    assert num_hits(caches[0], prompts) == num_hits(caches[1], prompts)
    assert caches[0].policy_state() == caches[1].policy_state()
    assert caches[0].estimate_hit_ratios() == caches[1].estimate_hit_ratios()
