import pytest

from prefixcache import BlockId, DoubleFreeError, InvalidArgumentError, OutOfBlocksError
from prefixcache.block_pool import BlockPool


def counts(pool: BlockPool) -> list[int]:
    return [pool.num_references(BlockId(i)) for i in range(pool.num_blocks)]


def test_a_fresh_pool_hands_out_ascending_ids() -> None:
    pool = BlockPool(8)
    assert [pool.allocate(3), pool.allocate(1), pool.allocate(4)] == [[0, 1, 2], [3], [4, 5, 6, 7]]
    pool.check()


@pytest.mark.parametrize("freed_order", [[3, 4, 5], [5, 4, 3], [4, 3, 5]])
def test_blocks_freed_together_come_back_ascending(freed_order: list[int]) -> None:
    pool = BlockPool(8)
    pool.allocate(8)
    pool.release(list(map(BlockId, freed_order)))
    assert [pool.allocate(1), pool.allocate(2)] == [[3], [4, 5]]
    pool.check()


def test_allocate_takes_all_or_none() -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError, match="need 4 blocks, but only 3 are free and 0 can be evicted"):
        pool.allocate(4)
    assert pool.num_free == 3
    pool.check()


def test_b17_a_second_free_raises_and_changes_nothing() -> None:
    pool = BlockPool(4)
    x, y = pool.allocate(2)
    pool.release([x])
    with pytest.raises(DoubleFreeError, match=r"\[0\]"):
        pool.release([x])
    assert (pool.num_free, counts(pool)) == (3, [0, 1, 0, 0])
    with pytest.raises(DoubleFreeError):
        pool.release([y, x])  # y could be released, but not together with x
    assert (pool.num_free, counts(pool)) == (3, [0, 1, 0, 0])
    pool.check()
    first, second = pool.allocate(1), pool.allocate(1)
    assert first != second
    pool.check()


def test_b17_nobody_can_release_the_trees_reference() -> None:
    pool = BlockPool(4)
    block_ids = pool.allocate(1)
    pool.add_cached(block_ids)
    pool.release(block_ids)
    with pytest.raises(DoubleFreeError):
        pool.release(block_ids)
    assert (pool.num_idle, pool.num_free) == (1, 3)
    pool.check()


def test_a_cached_block_is_idle_while_nobody_else_refers_to_it() -> None:
    pool = BlockPool(4)
    block_ids = pool.allocate(2)
    pool.add_cached(block_ids)
    assert (pool.num_idle, pool.num_free) == (0, 2)
    pool.release(block_ids)
    assert (pool.num_idle, pool.num_free) == (2, 2)
    pool.retain(block_ids[:1])
    assert (pool.num_idle, pool.is_idle(block_ids[0]), pool.is_idle(block_ids[1])) == (1, False, True)
    pool.check()
    pool.release(block_ids[:1])
    pool.remove_cached(block_ids)
    assert (pool.num_idle, pool.num_free) == (0, 4)
    pool.check()


def test_a_block_that_leaves_the_tree_stays_with_its_holder() -> None:
    pool = BlockPool(4)
    block_ids = pool.allocate(1)
    pool.add_cached(block_ids)
    pool.remove_cached(block_ids)
    assert (pool.num_free, pool.num_idle, pool.is_stale(block_ids[0])) == (3, 0, True)
    pool.check()
    assert pool.release(block_ids) == 0  # none that was never cached
    assert (pool.num_free, counts(pool)) == (4, [0, 0, 0, 0])
    pool.check()


def test_forgetting_all_frees_idle_blocks_at_once_and_live_ones_when_released() -> None:
    told: list[BlockId] = []
    pool = BlockPool(6, on_free=told.extend)
    idle_ids, live_ids, own_ids = pool.allocate(2), pool.allocate(1), pool.allocate(1)
    pool.add_cached(idle_ids + live_ids)
    pool.release(idle_ids)
    pool.forget_cached()
    assert (pool.num_free, pool.num_idle, told) == (4, 0, [])
    pool.check()
    assert pool.release(live_ids) == 0
    assert pool.release(own_ids) == 1
    assert (pool.num_free, told) == (6, live_ids + own_ids)
    pool.check()
    assert sorted(pool.allocate(6)) == list(range(6))
    assert sorted(told) == sorted(idle_ids + live_ids + own_ids)
    pool.check()


def test_blocks_forgotten_twice_are_swept_once() -> None:
    pool = BlockPool(3)
    for _ in range(3):
        block_ids = pool.allocate(1)
        pool.add_cached(block_ids)
        pool.release(block_ids)
        pool.forget_cached()
        pool.check()
    assert sorted(pool.allocate(3)) == [0, 1, 2]
    with pytest.raises(OutOfBlocksError):
        pool.allocate(1)
    pool.check()


def test_on_free_is_told_exactly_what_became_free() -> None:
    told: list[list[BlockId]] = []
    pool = BlockPool(8, on_free=lambda block_ids: told.append(sorted(block_ids)))
    block_ids = pool.allocate(4)
    pool.retain(block_ids[:1])
    pool.add_cached(block_ids[3:])
    pool.release(block_ids)
    assert told == [[1, 2]]
    pool.remove_cached(block_ids[3:])
    assert told == [[1, 2], [3]]
    pool.release(block_ids[:1])
    assert told == [[1, 2], [3], [0]]


def test_retain_of_a_free_block_is_our_bug() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="free block 1"):
        pool.retain([BlockId(1)])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks is 0"):
        BlockPool(0)


def test_check_finds_a_block_in_the_free_list_twice() -> None:
    pool = BlockPool(4)
    pool._free_ids.append(BlockId(0))
    with pytest.raises(AssertionError):
        pool.check()


def test_check_finds_a_wrong_idle_count() -> None:
    pool = BlockPool(4)
    pool._num_idle = 1
    with pytest.raises(AssertionError):
        pool.check()
