"""Who gives way to a more urgent sequence: none in vain, and no more than it needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefixcache import BlockId
from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.engine.sequence import Sequence


class Room:
    """The slots and blocks that running sequences leave when they give way to a newcomer.

    A block counts when nobody else holds it, no pin either, and the newcomer doesn't share it anyway.
    """

    def __init__(
        self, cache: CacheScheme[Any], shared_ids: Iterable[BlockId] = (), tenant: str | None = None
    ) -> None:
        """Nobody has given way. `shared_ids`: what the newcomer itself will hold of the cached blocks.

        tenant: whose sequences' blocks count, when it is at its ceiling; None: everybody's.
        """
        self._cache = cache
        self._tenant = tenant
        self._num_holders = {block_id: cache.num_holders(block_id) + 1 for block_id in shared_ids}
        """Those left of each block that has been looked at."""
        self.num_slots = 0
        self.num_blocks = 0

    def add(self, sequence: Sequence) -> None:
        """The sequence gives way. O(its blocks)."""
        self.num_slots += 1 + sequence.num_choices_to_fork
        for block_id in self._blocks_of(sequence):
            if block_id not in self._num_holders:
                self._num_holders[block_id] = self._cache.num_holders(block_id)
            self._num_holders[block_id] -= 1
            self.num_blocks += self._num_holders[block_id] == 0

    def remove(self, sequence: Sequence) -> None:
        """The sequence, added before, stays. O(its blocks)."""
        self.num_slots -= 1 + sequence.num_choices_to_fork
        for block_id in self._blocks_of(sequence):
            self.num_blocks -= self._num_holders[block_id] == 0
            self._num_holders[block_id] += 1

    def has(self, num_slots: int, num_blocks: int) -> bool:
        """Whether it is so much at least."""
        return self.num_slots >= num_slots and self.num_blocks >= num_blocks

    def _blocks_of(self, sequence: Sequence) -> Iterable[BlockId]:
        if self._tenant not in (None, sequence.tenant):
            return ()
        return sequence.running_handle.held_blocks


def choose_victims(
    candidates: Iterable[Sequence], room: Room, *, num_slots: int, num_blocks: int
) -> list[Sequence] | None:
    """Those who leave so many slots and blocks at least; None if all of them together don't.

    The first candidates give way first; whoever the others make superfluous is spared, the last first.
    O(candidates and their blocks).
    """
    victims: list[Sequence] = []
    rest = iter(candidates)
    while not room.has(num_slots, num_blocks):
        victim = next(rest, None)
        if victim is None:
            return None
        room.add(victim)
        victims.append(victim)
    for victim in reversed(victims[:]):
        room.remove(victim)
        if room.has(num_slots, num_blocks):
            victims.remove(victim)
        else:
            room.add(victim)
    return victims
