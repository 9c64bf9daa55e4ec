"""What has changed in the cache, in order: for whoever keeps an index of its blocks elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from prefixcache.block_keys import BlockKey
from prefixcache.errors import EventGapError, InvalidArgumentError
from prefixcache.token_chunks import TOKEN_BYTES


class BlocksStored(NamedTuple):
    """A run of whole blocks can be found now."""

    sequence_number: int
    parent_key: BlockKey
    """What the first key was chained from: the block before it or, where a path starts or enters a
    private scope, a key that is no block's."""
    block_keys: tuple[BlockKey, ...]
    """From the parent on, each chained from the one before it."""
    tokens: bytes
    """Packed tokens of the run."""
    public: bool
    """Whether everybody in the domain may read it."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES


class BlocksRemoved(NamedTuple):
    """Blocks cannot be found any more."""

    sequence_number: int
    block_keys: tuple[BlockKey, ...]
    """Each before the one it was chained from."""
    cause: str


class CacheCleared(NamedTuple):
    """No block can be found any more."""

    sequence_number: int


Event = BlocksStored | BlocksRemoved | CacheCleared


class CachedRun(NamedTuple):
    """Some of what is cached; the fields are those of `BlocksStored`."""

    parent_key: BlockKey
    block_keys: Sequence[BlockKey]
    tokens: bytes
    public: bool


class EventState(NamedTuple):
    """All that is cached at one moment, for a subscriber that starts or has fallen behind."""

    events: list[BlocksStored]
    """They bear the number of the last event whose effect they include."""
    next_sequence_number: int
    """Of the first event whose effect they do not include."""


class EventLog:
    """The latest events, numbered without a gap, in bounded memory. One thread at a time.

    Invariants, proved by `check`: the events held are the latest, without a gap; they name at
    most `capacity` blocks, an event that names none counting as one.
    """

    __slots__ = ("_capacity", "_events", "_listener", "_next_number", "_num_named_blocks", "_oldest_number")

    def __init__(self, capacity: int, *, first_sequence_number: int = 1) -> None:
        """An empty log of `capacity` blocks: with 16 tokens a block, 125 to 425 bytes each.

        A subscriber can outlive the log. It finds the gap if `first_sequence_number` is above all
        numbers of the log before, which `time.time_ns()` is. Raises InvalidArgumentError when
        either number is less than one.
        """
        if capacity < 1:
            raise InvalidArgumentError(f"capacity is {capacity}; give room for at least 1 block")
        if first_sequence_number < 1:
            raise InvalidArgumentError(f"first_sequence_number is {first_sequence_number}; give at least 1")
        self._capacity = capacity
        self._events: dict[int, Event] = {}  # by number
        self._num_named_blocks = 0
        self._listener: Callable[[], None] | None = None
        self._oldest_number = self._next_number = first_sequence_number

    @property
    def oldest_sequence_number(self) -> int:
        """Of the oldest event held; `next_sequence_number` when none is."""
        return self._oldest_number

    @property
    def next_sequence_number(self) -> int:
        """Of the event that comes next."""
        return self._next_number

    def listen(self, listener: Callable[[], None]) -> None:
        """Call the one `listener` after each event from now on, on whatever thread changes the cache.

        Requires: it is quick, raises nothing and leaves the cache alone.
        """
        self._listener = listener

    def stored(
        self, parent_key: BlockKey, block_keys: Sequence[BlockKey], tokens: bytes, public: bool
    ) -> None:
        """These blocks have come behind `parent_key`. Requires: at least one, all whole. O(blocks)."""
        assert block_keys, "a stored event without blocks"
        assert tokens, "a stored event without tokens"
        assert len(tokens) % (len(block_keys) * TOKEN_BYTES) == 0, "a stored event with a part of a block"
        self._append(BlocksStored(self._next_number, parent_key, tuple(block_keys), tokens, public))

    def removed(self, block_keys: Sequence[BlockKey], cause: str) -> None:
        """These blocks have gone. Requires: at least one, and each before its parent. O(blocks)."""
        assert block_keys, "a removed event without blocks"
        self._append(BlocksRemoved(self._next_number, tuple(block_keys), cause))

    def cleared(self) -> None:
        """All blocks have gone. O(1)."""
        self._append(CacheCleared(self._next_number))

    def since(self, sequence_number: int, limit: int | None = None) -> list[Event]:
        """The events from `sequence_number` on, the oldest first, at most `limit` of them.

        Raises EventGapError when some of them are not held any more, or when so many never were:
        then the number is another log's. Raises InvalidArgumentError when `limit` is less than
        one. O(events returned).
        """
        if limit is not None and limit < 1:
            raise InvalidArgumentError(f"limit is {limit}; give at least 1, or None for all")
        if not self._oldest_number <= sequence_number <= self._next_number:
            raise EventGapError(
                wanted=sequence_number,
                oldest=self._oldest_number,
                next_sequence_number=self._next_number,
            )
        end = self._next_number if limit is None else min(self._next_number, sequence_number + limit)
        return [self._events[number] for number in range(sequence_number, end)]

    def state_events(self, runs: Iterable[CachedRun]) -> EventState:
        """What is cached now, as events, and the number to go on from.

        Requires: `runs` are all whole blocks cached now, parents first. O(blocks).
        """
        number = self._next_number - 1
        events = [
            BlocksStored(number, parent_key, tuple(block_keys), tokens, public)
            for parent_key, block_keys, tokens, public in runs
        ]
        return EventState(events, self._next_number)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(events)."""
        assert list(self._events) == list(range(self._oldest_number, self._next_number))
        assert all(event.sequence_number == number for number, event in self._events.items())
        assert self._num_named_blocks == sum(map(_num_named_blocks, self._events.values()))
        assert self._num_named_blocks <= self._capacity

    def _append(self, event: Event) -> None:
        self._events[self._next_number] = event
        self._next_number += 1
        self._num_named_blocks += _num_named_blocks(event)
        while self._num_named_blocks > self._capacity:
            self._num_named_blocks -= _num_named_blocks(self._events.pop(self._oldest_number))
            self._oldest_number += 1
        if self._listener is not None:
            self._listener()


def _num_named_blocks(event: Event) -> int:
    return 1 if isinstance(event, CacheCleared) else len(event.block_keys)
