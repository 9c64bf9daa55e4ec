"""Replaying a trace through the real cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import request, trace

from prefixcache import POLICIES, InvalidArgumentError, TenantQuota
from prefixcache.replay import OPTIMUM, Comparison, Replayer, Trace

small_prompts = st.lists(st.integers(0, 2), min_size=1, max_size=5)


def replayed(made_up: Trace, num_blocks: int, policy: str = "lru") -> Replayer:
    replayer = Replayer(made_up, policy=policy, num_blocks=num_blocks)
    for each in made_up:
        replayer.replay(each)
    return replayer


def naive_lru_hits(prompts: list[list[int]], num_blocks: int) -> int:
    """Longest-prefix hits; the deepest block is touched first, and eviction follows each request."""
    last_used: dict[tuple[int, ...], int] = {}
    num_hits = 0
    for now, prompt in enumerate(prompts):
        if len(prompt) > num_blocks:
            continue
        prefixes = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
        num_hits += sum(prefix in last_used for prefix in prefixes)
        last_used |= dict.fromkeys(prefixes, now)
        while len(last_used) > num_blocks:
            del last_used[min(last_used, key=lambda prefix: (last_used[prefix], -len(prefix)))]
    return num_hits


@given(prompts=st.lists(small_prompts, max_size=30), num_blocks=st.integers(1, 12))
def test_hits_of_block_ids_are_exactly_those_of_lru(prompts: list[list[int]], num_blocks: int) -> None:
    replayer = replayed(trace(*map(request, prompts)), num_blocks)

    assert replayer.counts["acme"].num_hit_ids == naive_lru_hits(prompts, num_blocks)
    assert replayer.counts["acme"].num_refused == sum(len(prompt) > num_blocks for prompt in prompts)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_as_large_as_the_cache_can_hit_whole(policy: str) -> None:
    replayer = replayed(trace(request([1, 2, 3]), request([1, 2, 3]), request([4])), 3, policy)

    counts = replayer.counts["acme"]
    assert (counts.num_requests, counts.num_prompt_ids, counts.num_hit_ids) == (3, 7, 3)
    assert replayer.num_evicted_blocks(None) == replayer.num_evicted_blocks("acme") == 1


def test_tokens_are_replayed_with_the_real_block_size_and_their_output() -> None:
    """A second turn repeats prompt and output; the last token generated has no rows yet."""
    made_up = trace(
        request([1, 2, 3], output_ids=[4, 5, 6]),
        request([1, 2, 3, 4, 5, 6, 7, 8]),
        request([1, 2, 3, 4, 5, 6, 7, 8]),
        block_size=4,
        has_tokens=True,
    )

    counts = replayed(made_up, num_blocks=8).counts["acme"]

    assert (counts.num_prompt_ids, counts.num_hit_ids) == (19, 5 + 7)


def test_what_finds_no_room_for_its_output_is_refused_and_leaves_nothing() -> None:
    made_up = trace(request([1, 2, 3], output_ids=[4, 5]), request([1, 2, 3]), block_size=2, has_tokens=True)

    counts = replayed(made_up, num_blocks=2).counts["acme"]

    assert (counts.num_requests, counts.num_refused, counts.num_hit_ids) == (2, 1, 0)


def test_tenants_share_only_what_is_public() -> None:
    made_up = trace(
        request([1, 2, 3], tenant="acme", num_public_ids=2),
        request([1, 2, 3], tenant="other", num_public_ids=2),
    )

    counts = replayed(made_up, num_blocks=8).counts

    assert {tenant: each.num_hit_ids for tenant, each in counts.items()} == {"acme": 0, "other": 2}


@pytest.mark.parametrize(("floor_blocks", "num_hits"), [(0, 0), (1, 1), (2, 2)])
def test_a_floor_keeps_a_tenants_blocks(floor_blocks: int, num_hits: int) -> None:
    made_up = trace(
        request([1, 2], tenant="quiet"),
        *(request([number, number], tenant="loud") for number in (5, 6, 7)),
        request([1, 2], tenant="quiet"),
    )
    quotas = {"quiet": TenantQuota(floor_blocks=floor_blocks)}
    replayer = Replayer(made_up, policy="lru", num_blocks=4, quotas=quotas)
    for each in made_up:
        replayer.replay(each)

    assert replayer.counts["quiet"].num_hit_ids == num_hits
    assert replayer.counts["loud"].num_refused == 0


@pytest.mark.parametrize(("ceiling_blocks", "num_hits"), [(None, 3), (3, 3), (2, 0)])
def test_a_tenant_holds_no_more_than_its_ceiling(ceiling_blocks: int | None, num_hits: int) -> None:
    made_up = trace(request([1, 2, 3]), request([1, 2, 3]))
    quotas = {"acme": TenantQuota(ceiling_blocks=ceiling_blocks)}
    replayer = Replayer(made_up, policy="lru", num_blocks=9, quotas=quotas)
    for each in made_up:
        replayer.replay(each)

    counts = replayer.counts["acme"]
    assert (counts.num_hit_ids, counts.num_refused) == (num_hits, 0 if num_hits else 2)


def test_a_floor_above_the_pool_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        Replayer(trace(), policy="lru", num_blocks=4, quotas={"acme": TenantQuota(floor_blocks=6)})


def test_a_tenant_that_never_found_room_has_a_row_too() -> None:
    made_up = trace(request([1, 2, 3], tenant="large"), request([1], tenant="small"))
    comparison = Comparison(made_up, policies=["lru"], capacities=[2])
    for each in made_up:
        comparison.replay(each)

    assert comparison.tenants() == ["large", "small"]
    assert [
        (row.tenant, row.num_requests, row.num_refused, row.num_prompt_ids, row.num_evicted_blocks)
        for row in comparison.rows()
    ] == [(None, 2, 1, 4, 0), ("large", 1, 1, 3, 0), ("small", 1, 0, 1, 0)]


def test_nothing_replayed_is_all_zeros() -> None:
    (row, best) = Comparison(trace(), policies=["lru"], capacities=[2], with_optimum=True).rows()

    assert (row.num_requests, row.hit_ratio, row.share_of_optimum) == (0, 0, None)
    assert best.policy == OPTIMUM
