from sortedcontainers import SortedDict, SortedList
from support.cache_runs import run

from prefixcache import PrefixCache
from prefixcache.graveyard import Graveyard


def test_piles_are_emptied_a_few_items_at_a_time() -> None:
    piles = [{1: "a", 2: "b"}, [3], SortedDict({4: "c", 5: "d"}), SortedList([6, 7]), []]
    graveyard = Graveyard()
    graveyard.bury(piles)
    for num_left in (5, 3, 1, 0, 0):
        graveyard.dig(2)
        assert sum(map(len, piles)) == num_left


def test_a_forgotten_tree_is_taken_apart_by_the_requests_that_come() -> None:
    cache = PrefixCache(num_blocks=400, block_size=1)
    for number in range(300):
        run(cache, [number])
    node = next(node for _, node in cache._tree.nodes())
    root = node.parent
    assert root is not None
    cache.reset()
    assert len(root.children) == 300
    for number in range(40):
        run(cache, [number])
    assert root.children == {}
    assert node.parent is None
