"""The schemes without sharing, beside a model that only counts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import (
    BlockCopy,
    HandleReleasedError,
    InvalidArgumentError,
    Match,
    Namespace,
    OutOfBlocksError,
    PendingCopiesError,
    pack_tokens,
)
from prefixcache_worker.engine.cache_scheme import make_cache
from prefixcache_worker.engine.unshared_cache import OwnBlocks, UnsharedCache

NAMESPACE = Namespace(model="m", tenant="t")
SIZE = 4


def acquire(cache: UnsharedCache, num_tokens: int) -> OwnBlocks:
    return cache.acquire([7] * num_tokens, NAMESPACE)


@dataclass
class Claim:
    """What the model knows of one handle."""

    handle: OwnBlocks
    num_tokens: int
    extents: list[object]
    copied: list[object]
    """Extents whose rows a fork has not copied yet."""


class CountingModel:
    """Extents without numbers: one is taken while a claim has it or copies from it."""

    def __init__(self, num_blocks: int, extent_blocks: int) -> None:
        self.extent_tokens = extent_blocks * SIZE
        self.num_extents = num_blocks // extent_blocks
        self.claims: list[Claim] = []

    def num_taken(self) -> int:
        return len({id(extent) for claim in self.claims for extent in (*claim.extents, *claim.copied)})

    def new_extents(self, num_tokens: int, num_had: int = 0) -> list[object] | None:
        """Those that so many tokens need besides what they had; None if there is no room."""
        num_new = -(-num_tokens // self.extent_tokens) - num_had
        return [object() for _ in range(num_new)] if self.num_taken() + num_new <= self.num_extents else None


@given(
    num_blocks=st.integers(1, 12),
    extent_blocks=st.integers(1, 5),
    operations=st.lists(
        st.tuples(st.sampled_from("aaeeefcr"), st.integers(0, 7), st.integers(1, 9)), max_size=40
    ),
)
def test_it_holds_what_a_model_that_counts_says(
    num_blocks: int, extent_blocks: int, operations: list[tuple[str, int, int]]
):
    extent_blocks = min(extent_blocks, num_blocks)
    freed: list[int] = []
    cache = UnsharedCache(
        num_blocks=num_blocks, block_size=SIZE, extent_blocks=extent_blocks, on_free=freed.extend
    )
    model = CountingModel(num_blocks, extent_blocks)
    for operation, which, num_tokens in operations:
        if operation != "a" and not model.claims:
            continue
        claim = model.claims[which % len(model.claims)] if model.claims else None
        before = cache.stats()
        freed.clear()
        new: list[object] | None = []
        try:
            match operation:
                case "a":
                    new = model.new_extents(num_tokens)
                    handle = acquire(cache, num_tokens)
                    model.claims.append(Claim(handle, num_tokens, new or [], []))
                case "e":
                    new = model.new_extents(claim.num_tokens + num_tokens, len(claim.extents))
                    assert cache.extend(claim.handle, [7] * num_tokens) == []
                    claim.num_tokens += num_tokens
                    claim.extents += new or []
                case "f" if not claim.copied:
                    new = model.new_extents(claim.num_tokens)
                    fork = cache.fork(claim.handle)
                    model.claims.append(Claim(fork, claim.num_tokens, new or [], list(claim.extents)))
                case "c":
                    cache.complete_copies(claim.handle)
                    claim.copied = []
                case "r":
                    cache.release(claim.handle)
                    model.claims.remove(claim)
        except OutOfBlocksError:
            assert new is None
            assert cache.stats() == before
        else:
            assert new is not None
        cache.check()
        stats = cache.stats()
        tables = [claim.handle.block_table for claim in model.claims]
        assert [len(table) for table in tables] == [-(-claim.num_tokens // SIZE) for claim in model.claims]
        assert len({i for table in tables for i in table}) == sum(map(len, tables))
        assert not {i for table in tables for i in table} & set(freed)
        assert stats.num_live == model.num_taken() * extent_blocks
        assert stats.num_free + stats.num_live == num_blocks
        num_in_extents = model.num_extents * extent_blocks
        assert sum(cache.num_holders(i) > 0 for i in range(num_in_extents)) == stats.num_live
        if operation in "cr":
            assert len(freed) == stats.num_free - before.num_free
    for claim in model.claims:
        cache.release(claim.handle)
    cache.check()
    assert cache.stats().num_free == num_blocks


@given(extent_blocks=st.integers(1, 6), num_tokens=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_the_blocks_of_an_extent_lie_one_after_the_other(extent_blocks: int, num_tokens: list[int]):
    cache = UnsharedCache(num_blocks=36, block_size=SIZE, extent_blocks=extent_blocks)
    others = [acquire(cache, 1) for _ in range(3)]
    cache.release(others[1])
    handle = acquire(cache, 1)
    for count in num_tokens:
        cache.extend(handle, [7] * count)
    table = handle.block_table
    for i, block_id in enumerate(table):
        assert block_id == table[i - i % extent_blocks] + i % extent_blocks
    assert len(table) == -(-handle.num_tokens // SIZE)


def test_nothing_is_found_and_nothing_cached():
    cache = UnsharedCache(num_blocks=8, block_size=SIZE)
    handle = cache.acquire(pack_tokens([7] * 8), NAMESPACE)
    assert handle.num_tokens == 8
    cache.publish(handle, 8, include_tail=True)
    assert cache.match([7] * 8, NAMESPACE) == Match([], 0, None)
    second = acquire(cache, 8)
    assert second.num_cached_tokens == 0
    assert not set(handle.block_table) & set(second.block_table)
    assert cache.dump() == []
    cache.release(handle)
    assert cache.stats().num_idle == 0
    assert cache.match([7] * 8, NAMESPACE).num_tokens == 0


def test_a_fork_copies_every_row_and_keeps_its_source_until_then():
    cache = UnsharedCache(num_blocks=8, block_size=SIZE)
    parent = acquire(cache, 10)
    fork = cache.fork(parent)
    first, second, third = parent.block_table
    own = fork.block_table
    assert fork.copies == [
        BlockCopy(first, own[0], 4),
        BlockCopy(second, own[1], 4),
        BlockCopy(third, own[2], 2),
    ]
    assert not set(own) & {first, second, third}
    cache.release(parent)
    assert cache.stats().num_free == 2
    assert cache.stats().num_used_slots == 3 * SIZE + 10  # what is only copied from counts as full
    with pytest.raises(PendingCopiesError, match=r"^3 copies are pending"):
        cache.fork(fork)
    cache.complete_copies(fork)
    assert (fork.copies, cache.stats().num_free, cache.stats().num_copied) == ([], 5, 3)
    cache.check()


def test_a_preallocated_sequence_reserves_what_it_does_not_use():
    cache = UnsharedCache(num_blocks=70, block_size=SIZE, extent_blocks=32)
    acquire(cache, 10)
    stats = cache.stats()
    assert (stats.num_live, stats.num_live_unshared, stats.num_used_slots) == (32, 32, 10)
    acquire(cache, 128)
    with pytest.raises(OutOfBlocksError, match=r"^need 32 blocks, but only 0 are free and 0 can be evicted"):
        acquire(cache, 1)
    assert cache.stats().num_free == 6  # less than an extent: nobody's


def test_wrong_calls_change_nothing():
    cache = UnsharedCache(num_blocks=8, block_size=SIZE)
    handle = acquire(cache, 4)
    with pytest.raises(InvalidArgumentError, match=r"^the prompt is empty"):
        acquire(cache, 0)
    with pytest.raises(InvalidArgumentError, match=r"^token id -1 is outside"):
        cache.extend(handle, [7, -1])
    assert handle.num_tokens == 4
    cache.release(handle)
    for call in (
        cache.release,
        cache.complete_copies,
        cache.fork,
        lambda handle: cache.extend(handle, [7]),
    ):
        with pytest.raises(HandleReleasedError, match=r"^the handle has been released already"):
            call(handle)
    assert cache.stats().num_free == 8
    cache.check()


@pytest.mark.parametrize("extent_blocks", [0, 9])
def test_an_extent_is_no_longer_than_the_pool(extent_blocks: int):
    with pytest.raises(InvalidArgumentError, match=rf"^extent_blocks is {extent_blocks}; give 1 to 8$"):
        UnsharedCache(num_blocks=8, block_size=SIZE, extent_blocks=extent_blocks)


@pytest.mark.parametrize(
    ("scheme", "num_blocks", "num_live"),
    [("shared", 40, 1), ("paged", 40, 1), ("contiguous", 40, 25), ("contiguous", 20, 20)],
)
def test_contiguous_reserves_the_context_or_the_pool_if_that_is_smaller(
    scheme: str, num_blocks: int, num_live: int
):
    cache = make_cache(scheme, num_blocks=num_blocks, block_size=SIZE, max_total_tokens=98)
    handle = cache.acquire([7], NAMESPACE)
    assert cache.stats().num_live == num_live
    cache.release(handle)
    cache.check()
