"""The default policy: what it gains where conversations go on, and that it costs nothing elsewhere."""

import itertools
from collections.abc import Callable, Iterable

import pytest
from support.cache_runs import run
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
from prefixcache.radix_node import MAX_TURN
from prefixcache.turn_credit import CREDIT_TICKS, TurnCreditPolicy


def circle(num_prompts: int) -> Iterable[Prompt]:
    """More prompts than fit, again and again in the same order."""
    prompts = [fresh(12) for _ in range(50)]
    return itertools.islice(itertools.cycle(prompts), num_prompts)


def hits_of_lru_and_auto(prompts: list[Prompt], num_blocks: int) -> tuple[int, int, PrefixCache]:
    auto = cache_of(num_blocks, "auto")
    hits = num_hits(cache_of(num_blocks, "lru"), prompts), num_hits(auto, prompts)
    auto.check()
    return *hits, auto


def turns(cache: PrefixCache) -> dict[tuple[int, ...], int]:
    """By the blocks that a node holds."""
    return {tuple(node.block_ids): node.turn for _, node in cache._tree.nodes()}


def test_it_hits_several_times_as_much_as_lru_where_conversations_come_back() -> None:
    lru, auto, cache = hits_of_lru_and_auto(list(conversations(3_000)), 1_100)
    assert lru > 200
    assert auto > 5 * lru
    assert cache.policy_state().credit_ticks == CREDIT_TICKS


@pytest.mark.parametrize(
    ("traffic", "num_blocks"),
    [
        (short_lived_conversations, 500),
        (short_lived_conversations, 250),
        (shared_prefixes, 200),
        (shared_prefixes, 800),
        (circle, 500),
        (circle, 700),
    ],
)
def test_it_keeps_what_lru_hits_where_turns_tell_nothing(
    traffic: Callable[[int], Iterable[Prompt]], num_blocks: int
) -> None:
    lru, auto, _ = hits_of_lru_and_auto(list(traffic(2_000)), num_blocks)
    assert auto >= 0.97 * lru


def test_it_is_exactly_lru_until_credit_has_proved_better() -> None:
    prompts = list(short_lived_conversations(2_000))
    auto, lru = cache_of(500, "auto"), cache_of(500, "lru")
    assert [num_hits(auto, [prompt]) for prompt in prompts] == [num_hits(lru, [prompt]) for prompt in prompts]
    assert auto.stats().num_evicted == lru.stats().num_evicted > 0
    state = auto.policy_state()
    assert (state.credit_ticks, state.since_tick, state.switches) == (0, 0, ())
    assert "not proved" in state.reason


def test_it_returns_to_lru_when_the_traffic_changes_its_nature_and_tells_why() -> None:
    before, after = list(conversations(2_000)), list(short_lived_conversations(3_000))
    lru, auto = cache_of(500, "lru"), cache_of(500, "auto")
    num_hits(lru, before)
    num_hits(auto, before)
    assert auto.policy_state().credit_ticks == CREDIT_TICKS
    assert num_hits(auto, after) >= 0.97 * num_hits(lru, after)
    state = auto.policy_state()
    assert state.credit_ticks == 0
    assert [switch.credit_ticks for switch in state.switches] == [CREDIT_TICKS, 0]
    assert 0 < state.switches[0].tick <= len(before) < state.switches[1].tick == state.since_tick
    assert state.reason == state.switches[1].reason
    assert state.reason.startswith("lru had")
    assert state.switches[0].reason.startswith("credit had")
    assert "standard deviations" in state.reason


def test_a_fixed_policy_tells_its_name_and_never_switches() -> None:
    cache = cache_of(300, "lfu")
    num_hits(cache, conversations(500))
    state = cache.policy_state()
    assert (state.name, state.credit_ticks, state.switches) == ("lfu", 0, ())
    assert state.shadow_hit_ratios is None
    assert cache.estimate_hit_ratios() is None


def test_a_prompt_that_goes_on_where_a_cached_one_ends_is_the_next_turn() -> None:
    cache = PrefixCache(num_blocks=200)
    prompt = stream("a", 64)
    for turn in range(MAX_TURN + 3):
        run(cache, prompt)
        assert set(turns(cache).values()) == {min(turn, MAX_TURN)}
        prompt = prompt + stream("bcdefghijk"[turn], 32)


def test_the_last_blocks_of_the_former_prompt_may_have_been_replaced() -> None:
    """An answer that was cut off or formatted again leaves one or two blocks behind."""
    cache = PrefixCache(num_blocks=200)
    run(cache, stream("a", 160) + stream("b", 32))
    run(cache, stream("a", 160) + stream("c", 64))
    assert sorted(turns(cache).values()) == [0, 1, 1]


def test_where_prompts_part_their_beginning_counts_as_the_latest_turn_and_they_as_first_ones() -> None:
    cache = PrefixCache(num_blocks=200)
    system = stream("s", 64)
    run(cache, system + stream("a", 96))
    run(cache, system + stream("b", 96))
    assert sorted(turns(cache).values()) == [0, 0, MAX_TURN]


def test_a_prompt_that_is_only_shorter_than_a_cached_one_changes_nothing() -> None:
    cache = PrefixCache(num_blocks=200)
    run(cache, stream("a", 160))
    run(cache, stream("a", 64))
    assert set(turns(cache).values()) == {0}


def test_a_turn_is_remembered_when_its_blocks_are_lost() -> None:
    cache = PrefixCache(num_blocks=40)
    prompt = stream("a", 64)
    run(cache, prompt)
    prompt = prompt + stream("b", 64)
    run(cache, prompt)
    assert cache.evict(40) == 8
    run(cache, prompt + stream("c", 64))
    assert set(turns(cache).values()) == {2}


def test_other_policies_take_no_turns() -> None:
    cache = PrefixCache(num_blocks=200, policy="lru")
    run(cache, stream("a", 64))
    run(cache, stream("a", 64) + stream("b", 64))
    assert set(turns(cache).values()) == {0}


def test_a_turn_counts_as_so_many_requests_more() -> None:
    cache = PrefixCache(num_blocks=200)
    policy = cache._blocks._policy
    assert isinstance(policy, TurnCreditPolicy)
    policy.credit_ticks = 3
    run(cache, stream("k", 64))
    run(cache, stream("k", 64) + stream("o", 16))  # last used at 2, as if at 5
    for letter in "abcd":  # at 3, 4, 5 and 6
        run(cache, stream(letter, 16))
    ages = []
    while cache.evict(1):
        ages.append(sorted(node.last_used for _, node in cache._tree.nodes() if node.is_leaf))
        cache.check()
    assert ages == [[2, 4, 5, 6], [2, 5, 6], *[[2, 5, 6]] * 4, [5, 6], [6], []]
