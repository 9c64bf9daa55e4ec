import pytest

from prefixcache.block_pool import BlockId
from prefixcache.eviction import EvictionOrder
from prefixcache.eviction_policies import least_recently_used
from prefixcache.quota import TenantAccount, TenantQuota
from prefixcache.radix_node import RadixNode


def leaf(
    serial: int,
    rank: int,
    *,
    owner: TenantAccount | None = None,
    is_output: bool = False,
    priority: int = 0,
    priority_ends: float = float("inf"),
) -> RadixNode:
    node = RadixNode(
        serial=serial,
        key=(b"scope", serial),
        parent=None,
        edge=b"",
        block_ids=[BlockId(serial)],
        owner=owner or TenantAccount("tenant"),
    )
    node.rank, node.is_output = rank, is_output
    node.priority, node.priority_ends = priority, priority_ends
    return node


def order_of(leaves: list[RadixNode]) -> EvictionOrder:
    order = EvictionOrder(least_recently_used())
    for node in leaves:
        order.put(node)
        order.put(node)
    order.check(leaves)
    return order


def drain(order: EvictionOrder, seconds: float = 0) -> list[int]:
    drawn = []
    while (coldest := order.coldest(seconds)) is not None:
        drawn.append(coldest.serial)
        order.discard(coldest)
        order.discard(coldest)
    order.check([])
    return drawn


def test_the_lowest_rank_comes_first_and_equal_ranks_by_serial() -> None:
    assert drain(order_of([leaf(1, 7), leaf(2, 3), leaf(3, 3)])) == [2, 3, 1]


def test_output_goes_before_a_prompt_of_the_same_age() -> None:
    assert drain(order_of([leaf(1, 3), leaf(2, 3, is_output=True), leaf(3, 2)])) == [3, 2, 1]


def test_a_lower_priority_goes_first_whatever_the_age() -> None:
    assert drain(order_of([leaf(1, 1, priority=5), leaf(2, 9), leaf(3, 5, priority=1)])) == [2, 3, 1]


def test_a_priority_ends_by_the_clock() -> None:
    leaves = [leaf(1, 1, priority=5, priority_ends=60), leaf(2, 9), leaf(3, 0, priority=5, priority_ends=61)]
    assert drain(order_of(leaves), seconds=59.9) == [2, 3, 1]
    leaves = [leaf(1, 1, priority=5, priority_ends=60), leaf(2, 9), leaf(3, 0, priority=5, priority_ends=61)]
    assert drain(order_of(leaves), seconds=60) == [1, 2, 3]


def test_parked_leaves_are_passed_over_and_come_back_the_coldest_first() -> None:
    owner = TenantAccount("rich")
    owner.quota = TenantQuota(floor_blocks=1)
    leaves = [leaf(1, 1, owner=owner), leaf(2, 2, owner=owner), leaf(3, 3, owner=owner), leaf(4, 4)]
    order = order_of(leaves)
    for parked in leaves[:3]:
        assert order.coldest(0) is parked
        order.park(parked)
        order.check(leaves)
    assert order.coldest(0) is leaves[3]
    order.unpark(owner, 2)
    order.check(leaves)
    order.discard(leaves[2])  # parked still
    order.check([leaves[0], leaves[1], leaves[3]])
    assert drain(order) == [1, 2, 4]


def test_an_entry_stays_what_it_was_when_it_was_put_in() -> None:
    changed, other = leaf(1, 1), leaf(2, 2)
    order = order_of([changed, other])
    changed.rank = 3
    assert order.coldest(0) is changed
    order.discard(changed)
    order.put(changed)
    assert drain(order) == [2, 1]


def test_check_finds_a_missing_leaf() -> None:
    older, newer = leaf(1, 1), leaf(2, 2)
    order = order_of([older])
    with pytest.raises(AssertionError):
        order.check([older, newer])
