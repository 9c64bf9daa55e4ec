"""Shadow caches hold what real ones would."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import NAMESPACE
from support.conversations import SPARE, cache_of, num_hits

from prefixcache import PrefixCache
from prefixcache.shadow_cache import Cohort, Footprint, ShadowCache


class Path:
    """Cohorts, numbered and made as the requests come."""

    def __init__(self, *shadows: ShadowCache) -> None:
        self.shadows = shadows
        self.num_cohorts = 0

    def use(
        self, tick: int, num_blocks: int, *, turn: int = 0, taken: Mapping[Cohort, int] | None = None
    ) -> tuple[Cohort, list[int]]:
        """A new cohort, and the misses of each shadow cache."""
        self.num_cohorts += 1
        cohort = Cohort(self.num_cohorts, tick, turn, num_blocks)
        misses = [shadow.use(taken or {}, cohort) for shadow in self.shadows]
        for former, num_taken in (taken or {}).items():
            former.num_blocks -= num_taken
        for shadow in self.shadows:
            shadow.check()
        return cohort, misses


def held(shadow: ShadowCache) -> dict[int, int]:
    """By tick: how many blocks."""
    return {cohort.tick: shadow._num_held[cohort] for cohort in shadow}


def test_the_latest_uses_are_held_and_the_last_blocks_dropped_first() -> None:
    shadow = ShadowCache(10, 0)
    path = Path(shadow)
    path.use(1, 4)
    path.use(2, 4)
    assert held(shadow) == {1: 4, 2: 4}
    path.use(3, 4)
    assert held(shadow) == {1: 2, 2: 4, 3: 4}
    path.use(4, 11)
    assert held(shadow) == {4: 10}


def test_what_was_dropped_is_missed() -> None:
    small, large = ShadowCache(5, 0), ShadowCache(50, 0)
    path = Path(small, large)
    first, misses = path.use(1, 4)
    assert misses == [4, 4]
    path.use(2, 4)
    assert not first.is_whole
    _, misses = path.use(3, 3, taken={first: 3})
    assert misses == [2, 0]
    assert first.num_blocks == 1


def test_a_turn_counts_as_so_many_ticks() -> None:
    shadow = ShadowCache(8, 10)
    path = Path(shadow)
    path.use(1, 4, turn=1)
    path.use(2, 4)
    path.use(3, 4)
    assert held(shadow) == {1: 4, 3: 4}
    path.use(20, 4)
    assert held(shadow) == {1: 4, 20: 4}
    path.use(21, 4)
    assert held(shadow) == {20: 4, 21: 4}


def test_a_change_of_credit_counts_at_once() -> None:
    shadow = ShadowCache(8, 10)
    path = Path(shadow)
    path.use(1, 4, turn=1)
    path.use(2, 4)
    shadow.give_credit(0)
    shadow.check()
    path.use(3, 4)
    assert held(shadow) == {2: 4, 3: 4}


def test_the_deeper_cohort_of_a_request_goes_first() -> None:
    shadow = ShadowCache(8, 0)
    path = Path(shadow)
    path.use(1, 4)
    deeper, _ = path.use(1, 4)
    path.use(2, 4)
    assert deeper not in list(shadow)
    shadow.clear()
    deeper, _ = path.use(3, 4)
    path.use(3, 4, turn=1)
    path.use(4, 4)
    assert deeper not in list(shadow)


def test_a_cohort_whose_tick_advances_is_held_as_if_used_anew() -> None:
    shadow = ShadowCache(8, 0)
    path = Path(shadow)
    first, _ = path.use(1, 4)
    path.use(2, 4)
    first.tick = 3
    path.use(4, 4)
    assert held(shadow) == {3: 4, 4: 4}
    assert first.is_whole


def test_a_cohort_comes_back_whole() -> None:
    shadow = ShadowCache(8, 0)
    path = Path(shadow)
    first, _ = path.use(1, 4)
    path.use(2, 6)
    first.tick = 3
    assert shadow.renew(first) == 2
    shadow.check()
    assert held(shadow) == {2: 4, 3: 4}
    path.use(4, 8)
    first.tick = 5
    assert shadow.renew(first) == 4
    shadow.check()
    assert held(shadow) == {4: 4, 5: 4}


def test_a_footprint_is_true_until_something_else_takes_of_it() -> None:
    cohort = Cohort(1, 1, 0, 4)
    footprint = Footprint(9, 0, ((cohort, 4),))
    assert footprint.is_true(9, 0)
    assert not footprint.is_true(8, 0)
    assert not footprint.is_true(9, 1)
    cohort.num_blocks = 3
    assert not footprint.is_true(9, 0)


def test_uses_leave_no_trace_for_ever() -> None:
    """Of cohorts that are not held any more, little stays in the heap."""
    shadow = ShadowCache(100, 0)
    path = Path(shadow)
    cohort, _ = path.use(1, 4)
    for tick in range(2, 200):
        cohort, _ = path.use(tick, 4, taken={cohort: 4})
    assert held(shadow) == {199: 4}
    assert len(shadow._heap) < 20


PROMPTS = st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=12).map(lambda ids: [100, *ids] if ids[0] > 1 else ids),
    max_size=80,
)


@settings(max_examples=50)
@given(PROMPTS, st.integers(13, 40))
def test_at_full_rate_the_shadow_of_lru_misses_exactly_what_lru_misses(
    prompts: list[list[int]], num_blocks: int
) -> None:
    """After every request, whatever rule the sampled cache itself follows."""
    # The shadow takes the room of the spare token for room.
    sampled, lru = cache_of(num_blocks, "auto"), cache_of(num_blocks + 1, "lru")
    sample = sampled._sample
    assert sample is not None
    num_misses = 0
    for prompt in prompts:
        num_hits(sampled, [prompt])
        num_misses += len(prompt) - num_hits(lru, [prompt])
        assert sample._lru.num_misses == num_misses
        sampled.check()


@settings(max_examples=50)
@given(PROMPTS)
def test_sequences_side_by_side_leave_the_sample_in_order(prompts: list[list[int]]) -> None:
    """Two at a time, each published twice, so that they adopt each other's blocks and branch off."""
    cache = PrefixCache(num_blocks=60, block_size=1)
    for pair in zip(prompts[::2], prompts[1::2], strict=False):
        handles = [cache.acquire(prompt + SPARE, NAMESPACE) for prompt in pair]
        for handle in handles:
            cache.publish(handle, handle.num_tokens - 1)
            cache.extend(handle, [7, 8])
        cache.check()
        for handle in handles:
            cache.publish(handle, handle.num_tokens - 1)
            cache.release(handle)
        cache.check()
