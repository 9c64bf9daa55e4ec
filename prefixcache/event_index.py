"""An index of a cache's blocks, kept by whoever only hears of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from prefixcache.block_keys import BlockKey
from prefixcache.errors import EventConflictError, EventGapError
from prefixcache.events import BlocksRemoved, BlocksStored, CacheCleared, Event, EventState


class EventIndex:
    """Which blocks a cache holds, known from its events alone.

    Invariant, proved by `check`: the children counted are those in the index.
    """

    __slots__ = ("_next_number", "_num_children", "_parent_of")

    def __init__(self, next_sequence_number: int = 1) -> None:
        """The index of an empty cache whose next event has this number."""
        self._next_number = next_sequence_number
        self._parent_of: dict[BlockKey, BlockKey] = {}
        self._num_children: Counter[BlockKey] = Counter()

    @classmethod
    def from_state(cls, state: EventState) -> EventIndex:
        """The index of a cache in this state. Raises EventConflictError. O(blocks)."""
        index = cls(state.next_sequence_number)
        for event in state.events:
            index._store(event)
        return index

    @property
    def next_sequence_number(self) -> int:
        """Of the event to apply next."""
        return self._next_number

    @property
    def parent_of(self) -> Mapping[BlockKey, BlockKey]:
        """Every block held, and what its key was chained from. A view."""
        return MappingProxyType(self._parent_of)

    def apply(self, event: Event) -> None:
        """Do to the index what was done to the cache.

        Raises EventGapError when events before it are missing. Raises EventConflictError when it
        was applied before, stores a block that is held, or removes one that is not held or is
        still the parent of one that is. Nothing has changed then. O(blocks), O(1) for a clear.
        """
        number = event.sequence_number
        if number > self._next_number:
            raise EventGapError(wanted=self._next_number, oldest=number, next_sequence_number=number + 1)
        if number < self._next_number:
            raise EventConflictError(
                f"event {number} comes again; event {self._next_number} is the next, so leave it out"
            )
        match event:
            case BlocksStored():
                self._store(event)
            case BlocksRemoved():
                self._remove(event)
            case CacheCleared():
                self._parent_of = {}
                self._num_children = Counter()
        self._next_number += 1

    def check(self) -> None:
        """Raise AssertionError if the invariant is broken. For tests. O(blocks)."""
        assert self._num_children == Counter(self._parent_of.values())
        assert all(self._num_children.values())

    def _store(self, event: BlocksStored) -> None:
        keys = event.block_keys
        held = [key for key in keys if key in self._parent_of]
        if held or len(set(keys)) < len(keys):
            raise EventConflictError(_conflict(event, held or keys, "stored twice"))
        parents = (event.parent_key, *keys[:-1])
        self._parent_of.update(zip(keys, parents, strict=True))
        self._num_children.update(parents)

    def _remove(self, event: BlocksRemoved) -> None:
        keys = event.block_keys
        unknown = [key for key in keys if key not in self._parent_of]
        if unknown or len(set(keys)) < len(keys):
            raise EventConflictError(_conflict(event, unknown or keys, "removed but not held"))
        num_orphaned: Counter[BlockKey] = Counter()  # children that go in this event
        for key in keys:
            if self._num_children[key] > num_orphaned[key]:
                raise EventConflictError(_conflict(event, [key], "removed before what is behind it"))
            num_orphaned[self._parent_of[key]] += 1
        for key in keys:
            parent = self._parent_of.pop(key)
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                del self._num_children[parent]


def _conflict(event: BlocksStored | BlocksRemoved, keys: Sequence[BlockKey], problem: str) -> str:
    names = ", ".join(key.hex() for key in keys[:3])
    return (
        f"event {event.sequence_number}: of its {len(event.block_keys)} blocks, {names} would be {problem}; "
        "take the whole state again"
    )
