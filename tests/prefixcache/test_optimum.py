"""The clairvoyant cache, against every possible cache of tiny traces, and against every policy."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.traces import request, trace

from prefixcache import POLICIES
from prefixcache.replay import OPTIMUM, Comparison, Optimum, ReplayCounts, Trace

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=3)
requests = st.builds(
    lambda ids, tenant, num_public: request(ids, tenant=tenant, num_public_ids=min(num_public, len(ids))),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.sampled_from(["acme", "other"]),
    st.integers(0, 3),
)


def optimum(made_up: Trace, num_blocks: int) -> ReplayCounts:
    clairvoyant = Optimum(made_up)
    for each in made_up:
        clairvoyant.add(each)
    return clairvoyant.counts(num_blocks)


def most_hits(prompts: list[list[int]], num_blocks: int) -> int:
    """The most longest-prefix hits, by trying all that could be kept after each request."""
    hits_of_kept: dict[frozenset[tuple[int, ...]], int] = {frozenset(): 0}
    for prompt in prompts:
        if len(prompt) > num_blocks:
            continue
        prefixes = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
        choices: dict[frozenset[tuple[int, ...]], int] = {}
        for kept, num_hits in hits_of_kept.items():
            num_found = next((i for i, prefix in enumerate(prefixes) if prefix not in kept), len(prefixes))
            blocks = kept.union(prefixes)
            for choice in map(frozenset, combinations(blocks, min(num_blocks, len(blocks)))):
                choices[choice] = max(choices.get(choice, 0), num_hits + num_found)
        hits_of_kept = choices
    return max(hits_of_kept.values())


@settings(max_examples=60, deadline=None)
@given(prompts=st.lists(prompts, min_size=1, max_size=6), num_blocks=st.integers(1, 5))
def test_no_choice_of_blocks_hits_more_or_the_optimum_less(prompts: list[list[int]], num_blocks: int) -> None:
    counts = optimum(trace(*map(request, prompts)), num_blocks)

    assert counts.num_hit_ids == most_hits(prompts, num_blocks)
    assert counts.num_refused == sum(len(prompt) > num_blocks for prompt in prompts)
    assert counts.num_prompt_ids == sum(map(len, prompts))


@settings(deadline=None)
@given(requests=st.lists(requests, min_size=1, max_size=25), num_blocks=st.integers(1, 10))
def test_no_policy_hits_more(requests: list, num_blocks: int) -> None:
    made_up = trace(*requests)
    # What a refused request would have published counts as published for the optimum.
    assume(all(len(each.prompt_ids) <= 4 * num_blocks for each in requests if each.num_public_ids))
    comparison = Comparison(made_up, policies=POLICIES, capacities=[num_blocks], with_optimum=True)
    for each in made_up:
        comparison.replay(each)

    rows = [row for row in comparison.rows() if row.tenant is None]
    *replayed, best = rows
    assert best.policy == OPTIMUM
    assert [row.policy for row in replayed] == list(POLICIES)
    assert all(row.num_hit_ids <= best.num_hit_ids for row in replayed)
    assert {row.num_refused for row in rows} == {best.num_refused}


def test_it_keeps_what_is_asked_for_soonest() -> None:
    made_up = trace(*(request([number]) for number in (1, 2, 3, 1, 2, 3)))

    assert optimum(made_up, 1).num_hit_ids == 1
    assert optimum(made_up, 2).num_hit_ids == 2
    assert optimum(made_up, 3).num_hit_ids == 3


def test_whole_blocks_of_tokens_count_and_output_is_there_for_the_next_turn() -> None:
    """Five tokens are written; the next prompt must compute its last one, the third reads two blocks."""
    made_up = trace(
        request([1, 2], output_ids=[3, 4, 5, 6]),
        request([1, 2, 3, 4]),
        request([1, 2, 3, 4, 9]),
        block_size=2,
        has_tokens=True,
    )

    assert optimum(made_up, 9).num_hit_ids == 2 + 4


@pytest.mark.parametrize("num_public_ids", [0, 1])
def test_a_block_made_public_later_serves_everybody(num_public_ids: int) -> None:
    made_up = trace(
        request([1, 2], tenant="acme", num_public_ids=num_public_ids),
        request([1, 2], tenant="other"),
        request([1, 2], tenant="other"),
    )

    assert optimum(made_up, 4).num_hit_ids == 2 + num_public_ids
