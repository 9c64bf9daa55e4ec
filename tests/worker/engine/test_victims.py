"""Who is chosen to give way, beside a count of what any set of them would leave."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.engine.victims import Room, choose_victims


class Handle(NamedTuple):
    held_blocks: tuple[int, ...]


class Runner(NamedTuple):
    """As much of a running sequence as the choice looks at."""

    number: int
    tenant: str
    num_choices_to_fork: int
    running_handle: Handle


class Holders(NamedTuple):
    """A cache that knows who holds what."""

    tables: list[tuple[int, ...]]

    def num_holders(self, block_id: int) -> int:
        return sum(block_id in table for table in self.tables)


tables = st.sets(st.integers(0, 9), max_size=5).map(lambda blocks: tuple(sorted(blocks)))


@given(
    runners=st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 3), tables), max_size=6),
    pinned=tables,
    shared=tables,
    tenant=st.sampled_from([None, "x"]),
    num_slots=st.integers(-2, 6),
    num_blocks=st.integers(0, 6),
)
def test_they_leave_enough_and_none_of_them_can_be_spared(
    runners, pinned, shared, tenant, num_slots, num_blocks
):
    candidates = [Runner(i, *rest, Handle(table)) for i, (*rest, table) in enumerate(runners)]
    cache = Holders([table for *_, table in runners] + [pinned])

    def is_enough(victims) -> bool:
        """Counted anew: the blocks of these that nobody else holds."""
        giving = [v for v in victims if tenant is None or v.tenant == tenant]
        stay = [c.running_handle.held_blocks for c in candidates if c not in giving]
        held = {i for v in giving for i in v.running_handle.held_blocks}
        left = held.difference(pinned, shared, *stay)
        return sum(1 + v.num_choices_to_fork for v in victims) >= num_slots and len(left) >= num_blocks

    victims = choose_victims(
        candidates, Room(cache, shared, tenant), num_slots=num_slots, num_blocks=num_blocks
    )
    if victims is None:
        assert not is_enough(candidates)
    else:
        assert victims == sorted(victims)
        assert is_enough(victims)
        assert not any(
            is_enough(fewer) for fewer in combinations(victims, max(0, len(victims) - 1)) if victims
        )
