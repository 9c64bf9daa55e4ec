"""Where evicted blocks go, what comes back, for whom, and how it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cache_runs import NAMESPACE, finish, run
from support.tiered_cache import TieredCache

from prefixcache import (
    InvalidArgumentError,
    Namespace,
    PendingMovesError,
    Place,
    PrefixCache,
    RestoreRule,
    TierMove,
)

SIZE = 4


def tokens(first: int, num_blocks: int) -> list[int]:
    """A prompt of whole blocks that begins like no prompt with another `first`, and one token more."""
    return [1000 * first + i for i in range(num_blocks * SIZE + 1)]


def make_cache(*tiers: int, num_blocks: int = 8, **options: object) -> PrefixCache:
    return PrefixCache(
        num_blocks=num_blocks,
        block_size=SIZE,
        policy="lru",
        tiers=[(f"tier {number}", size) for number, size in enumerate(tiers, start=1)],
        **options,  # type: ignore[arg-type]
    )


def restored(cache: PrefixCache, prompt: list[int], namespace: Namespace = NAMESPACE, **options: int) -> int:
    """Tokens that come from tiers for a prompt, which is dropped without having been computed."""
    handle = cache.acquire(prompt, namespace, **options)
    cache.check()
    cache.release(handle)
    return handle.num_restored_tokens


def used(cache: PrefixCache) -> list[int]:
    return [stats.num_used for stats in cache.stats().tiers]


def test_evicted_blocks_are_kept_deepest_coldest_and_come_back_in_order() -> None:
    cache = make_cache(5)
    run(cache, tokens(1, 3))
    table = cache.match(tokens(1, 3), NAMESPACE).block_ids
    cache.evict(8)
    places = [2, 1, 0]
    assert cache.take_moves() == [
        TierMove(Place(0, block_id), Place(1, place))
        for block_id, place in zip(reversed(table), reversed(places), strict=True)
    ]
    handle = cache.acquire(tokens(1, 3), NAMESPACE)
    assert (handle.num_cached_tokens, handle.num_restored_tokens) == (3 * SIZE, 3 * SIZE)
    assert cache.take_moves() == [
        TierMove(Place(1, place), Place(0, block_id))
        for place, block_id in zip(places, handle.block_table[:3], strict=True)
    ]
    assert used(cache) == [0]


def test_what_one_tier_gives_up_the_next_takes_and_the_last_drops() -> None:
    cache = make_cache(2, 3)
    run(cache, tokens(1, 7))
    cache.evict(8)
    near, far = cache.stats().tiers
    assert (near.num_used, near.num_stored, near.num_evicted) == (2, 7, 5)
    assert (far.num_used, far.num_stored, far.num_evicted) == (3, 5, 2)
    assert restored(cache, tokens(1, 7)) == 5 * SIZE  # the two deepest are lost
    near, far = cache.stats().tiers
    assert (near.num_used, near.num_restored, far.num_used, far.num_restored) == (0, 2, 0, 3)


def test_pool_and_tier_together_hold_as_many_blocks_as_they_have_places() -> None:
    cache = make_cache(8)
    for first in range(1, 5):
        run(cache, tokens(first, 4)[:-1])
    assert cache.stats().num_free == 0
    assert used(cache) == [8]
    assert restored(cache, tokens(1, 4)[:-1]) == 15
    assert restored(cache, tokens(4, 4)[:-1]) == 0  # it is in the pool


def test_a_block_that_was_computed_again_is_not_copied_again() -> None:
    cache = make_cache(8, num_worth_restoring=lambda tiers: 0)
    for _ in range(2):
        run(cache, tokens(1, 3))
        cache.evict(8)
    assert len(cache.take_moves()) == 3
    assert [(stats.num_used, stats.num_stored) for stats in cache.stats().tiers] == [(3, 3)]


def test_a_block_evicted_again_is_as_good_as_stored_now() -> None:
    cache = make_cache(2, num_worth_restoring=lambda tiers: 0)
    for first in (1, 2, 1, 3):
        run(cache, tokens(first, 1))
        cache.evict(8)
    cache._tiers._num_worth_restoring = len
    assert [restored(cache, tokens(first, 1)) for first in (1, 2, 3)] == [SIZE, 0, SIZE]


def test_a_prompt_that_is_evicted_for_its_own_blocks_from_the_tier_keeps_both() -> None:
    """The blocks that have to go take other places than those that come back."""
    cache = make_cache(4, num_blocks=4)
    run(cache, tokens(1, 3))
    run(cache, tokens(2, 3))
    cache.take_moves()
    handle = cache.acquire(tokens(1, 3), NAMESPACE)
    moves = cache.take_moves()
    stored = [move for move in moves if move.target.tier == 1]
    back = [move for move in moves if move.target.tier == 0]
    assert moves == stored + back
    assert len(back) == 3
    assert not {move.target for move in stored} & {move.source for move in back}
    finish(cache, handle)


def test_blocks_for_which_all_places_are_in_use_are_dropped() -> None:
    cache = make_cache(3, num_blocks=4)
    run(cache, tokens(1, 3))
    run(cache, tokens(2, 3))
    assert used(cache) == [3]
    assert restored(cache, tokens(1, 3)) == 3 * SIZE
    assert used(cache) == [0]


def test_partly_filled_blocks_do_not_go_to_tiers() -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 2)[:6])
    cache.evict(8)
    assert used(cache) == [1]


def test_a_cancelled_prompt_leaves_what_came_back_to_others() -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 3))
    cache.evict(8)
    assert restored(cache, tokens(1, 3)) == 3 * SIZE
    assert cache.match(tokens(1, 3), NAMESPACE).num_tokens == 3 * SIZE
    assert cache.stats().num_live == 0


def test_two_prompts_of_one_step_bring_a_prefix_back_once() -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 3))
    cache.evict(8)
    first, second = (cache.acquire(tokens(1, 3), NAMESPACE) for _ in range(2))
    assert first.block_table[:3] == second.block_table[:3]
    assert (first.num_restored_tokens, second.num_restored_tokens) == (3 * SIZE, 0)
    assert second.num_cached_tokens == 3 * SIZE


def test_nothing_comes_back_without_the_cache_and_no_more_than_is_asked_for() -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 3))
    cache.evict(8)
    handle = cache.acquire(tokens(1, 3), NAMESPACE, use_cache=False)
    assert handle.num_restored_tokens == 0
    cache.release(handle)
    assert restored(cache, tokens(1, 3), max_cached_tokens=6) == 6
    assert restored(cache, tokens(1, 3)) == 2 * SIZE  # the first is in the pool


@pytest.mark.parametrize(
    "stranger",
    [
        Namespace("model", "other", is_publisher=True),
        Namespace("model", "tenant", salt="salt"),
        Namespace("model", "tenant", adapter="adapter"),
        Namespace("other model", "tenant"),
        Namespace("model", "tenant", secret=b"secret"),
    ],
)
def test_nobody_gets_private_blocks_of_another(stranger: Namespace) -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 3))
    cache.evict(8)
    assert restored(cache, tokens(1, 3), stranger) == 0
    assert restored(cache, tokens(1, 3)) == 3 * SIZE


def test_everybody_gets_public_blocks_and_behind_them_only_ones_own() -> None:
    cache = make_cache(16, num_blocks=10)
    other = Namespace("model", "other")
    prompt = tokens(1, 4)
    run(cache, prompt, num_public_tokens=2 * SIZE)
    cache.evict(10)
    assert used(cache) == [4]
    assert restored(cache, prompt, other) == 2 * SIZE
    assert cache.dump()[0].public
    assert restored(cache, prompt) == 2 * SIZE  # the other two are in the pool again


def test_private_blocks_are_not_found_where_public_ones_are_declared() -> None:
    cache = make_cache(16)
    run(cache, tokens(1, 4))
    cache.evict(8)
    assert restored(cache, tokens(1, 4), num_public_tokens=4 * SIZE) == 0


def test_a_reset_forgets_the_tiers_and_what_runs_gets_its_rows_all_the_same() -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 3))
    cache.evict(8)
    cache.take_moves()
    handle = cache.acquire(tokens(1, 3), NAMESPACE)
    cache.reset()
    cache.check()
    assert len(cache.take_moves()) == 3
    assert used(cache) == [0]
    cache.release(handle)
    assert restored(cache, tokens(1, 3)) == 0


def test_snapshots_wait_for_the_moves(tmp_path: Path) -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 3))
    cache.evict(8)
    with pytest.raises(PendingMovesError, match="3 copies"):
        cache.save(tmp_path / "snapshot")
    with pytest.raises(PendingMovesError, match="3 copies"):
        cache.restore(tmp_path / "snapshot")
    cache.take_moves()
    cache.save(tmp_path / "snapshot")
    cache.restore(tmp_path / "snapshot")


def test_a_tier_has_room() -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks of tier 'tier 1' is 0; give at least 1"):
        make_cache(0)


def test_paths_evicted_in_parts_share_their_tokens() -> None:
    cache = make_cache(8)
    run(cache, tokens(1, 6)[:-1])
    for _ in range(6):
        cache.evict(1)
    blocks = [block for tier in cache._tiers._tiers for block in tier]
    assert len(blocks) == 6
    assert len({id(block.path.tokens) for block in blocks}) == 1


@pytest.mark.parametrize(
    ("tiers", "copy_seconds", "compute_seconds", "num_worth"),
    [
        ([1, 1, 1], (1.0,), 2.0, 3),
        ([1, 1, 1], (2.0,), 2.0, 0),
        ([1, 1, 1], (3.0,), 2.0, 0),
        ([1, 2, 2], (1.0, 3.0), 2.0, 1),
        ([2, 1], (1.0, 3.0), 2.0, 0),
        ([2, 1, 1], (1.0, 3.0), 2.0, 3),
        ([2, 1, 1, 2], (1.0, 3.0), 2.0, 3),
        ([1, 2, 1, 1], (1.0, 5.0), 2.0, 1),
        ([1, 2, 1, 1, 1, 1], (1.0, 5.0), 2.0, 6),
        ([], (1.0,), 2.0, 0),
    ],
)
def test_what_is_copied_saves_most_time(
    tiers: list[int], copy_seconds: tuple[float, ...], compute_seconds: float, num_worth: int
) -> None:
    rule = RestoreRule(copy_seconds=copy_seconds, compute_seconds=compute_seconds)
    assert rule(tiers) == num_worth


def test_the_rule_decides_over_the_blocks_found() -> None:
    tiered = TieredCache(
        num_blocks=8,
        block_size=SIZE,
        tiers=[2, 8],
        num_worth_restoring=RestoreRule(copy_seconds=(1, 9), compute_seconds=2),
    )
    handle = tiered.acquire(tokens(1, 6), NAMESPACE)
    assert handle is not None
    tiered.finish(handle)
    tiered.evict(8)
    assert tiered.cache.stats().tiers[1].num_used == 4
    handle = tiered.acquire(tokens(1, 6), NAMESPACE)
    assert handle is not None
    assert handle.num_restored_tokens == 2 * SIZE  # those of the near tier
    tiered.settle()
    tiered.check()
