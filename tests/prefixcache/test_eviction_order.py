import pytest

from prefixcache.block_pool import BlockId
from prefixcache.eviction import EvictionOrder
from prefixcache.radix_node import RadixNode


def leaf(serial: int, last_used: int) -> RadixNode:
    return RadixNode(
        serial=serial,
        key=(b"scope", serial),
        parent=None,
        edge=b"",
        block_ids=[BlockId(serial)],
        last_used=last_used,
    )


def test_the_least_recently_used_leaf_comes_first_and_equal_ages_by_serial() -> None:
    leaves = [leaf(serial=1, last_used=7), leaf(serial=2, last_used=3), leaf(serial=3, last_used=3)]
    order = EvictionOrder()
    for node in leaves:
        order.put(node)
        order.put(node)
    order.check(leaves)
    drawn = []
    while (coldest := order.coldest()) is not None:
        drawn.append(coldest.serial)
        order.discard(coldest)
        order.discard(coldest)
    assert drawn == [2, 3, 1]
    order.check([])


def test_check_finds_a_missing_leaf_and_an_age_changed_inside() -> None:
    older, newer = leaf(serial=1, last_used=1), leaf(serial=2, last_used=2)
    order = EvictionOrder()
    order.put(older)
    with pytest.raises(AssertionError):
        order.check([older, newer])
    order.put(newer)
    older.last_used = 3
    with pytest.raises(AssertionError):
        order.check([older, newer])
