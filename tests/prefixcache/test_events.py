"""The log of changes, and an index that is kept from it alone."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixcache import InvalidArgumentError, pack_tokens
from prefixcache.block_keys import BlockKey, BlockKeys
from prefixcache.errors import EventConflictError, EventGapError
from prefixcache.event_index import EventIndex
from prefixcache.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CachedRun,
    Event,
    EventLog,
    EventState,
)

KEYS = BlockKeys(chunk_bytes=4)  # a block is one token
ROOT = KEYS.root(b"")


def key(name: str) -> BlockKey:
    return BlockKey(name.encode().ljust(16, b"\0"))


def keys(names: str) -> tuple[BlockKey, ...]:
    return tuple(map(key, names))


def stored(number: int, parent: str, names: str) -> BlocksStored:
    return BlocksStored(number, key(parent), keys(names), bytes(4 * len(names)), public=True)


def removed(number: int, names: str) -> BlocksRemoved:
    return BlocksRemoved(number, keys(names), "evicted")


def num_named_blocks(events: list[Event]) -> int:
    return sum(1 if isinstance(event, CacheCleared) else len(event.block_keys) for event in events)


class ModelCache:
    """A tree with a block for each token, as a set of paths, that reports each change to a log."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.paths: set[tuple[int, ...]] = set()

    def key(self, path: tuple[int, ...]) -> BlockKey:
        return KEYS.chain(ROOT, pack_tokens(path))[-1] if path else ROOT

    def insert(self, path: tuple[int, ...]) -> None:
        num_held = max(length for length in range(len(path) + 1) if path[:length] in {(), *self.paths})
        added = path[num_held:]
        if added:
            parent = self.key(path[:num_held])
            tokens = pack_tokens(added)
            self.log.stored(parent, KEYS.chain(parent, tokens), tokens, public=len(path) % 2 == 0)
            self.paths.update(path[:length] for length in range(num_held + 1, len(path) + 1))

    def remove_behind(self, path: tuple[int, ...]) -> None:
        """The path and all that begins with it, the deepest first."""
        gone = [other for other in self.paths if other[: len(path)] == path]
        gone.sort(key=len, reverse=True)
        self.log.removed([self.key(other) for other in gone], "evicted")
        self.paths.difference_update(gone)

    def clear(self) -> None:
        self.log.cleared()
        self.paths.clear()

    def parent_of(self) -> dict[BlockKey, BlockKey]:
        return {self.key(path): self.key(path[:-1]) for path in self.paths}

    def runs(self) -> Iterator[CachedRun]:
        for path in sorted(self.paths, key=len):
            yield CachedRun(self.key(path[:-1]), [self.key(path)], pack_tokens(path[-1:]), public=True)


class LogMachine(RuleBasedStateMachine):
    """A cache that changes, one subscriber that never falls behind, and one that reads when it likes."""

    @initialize(capacity=st.integers(1, 40), first=st.sampled_from([1, 10**18]))
    def start(self, capacity: int, first: int) -> None:
        self.capacity = capacity
        self.log = EventLog(capacity, first_sequence_number=first)
        self.cache = ModelCache(self.log)
        self.history: list[Event] = []
        self.faithful, self.lazy = EventIndex(first), EventIndex(first)

    def after_change(self) -> None:
        """The one event of a change, which is held only if it fits into the log at all."""
        try:
            new = self.log.since(self.faithful.next_sequence_number)
        except EventGapError:
            self.faithful = EventIndex.from_state(self.log.state_events(self.cache.runs()))
            self.history.clear()
        else:
            self.history += new
            for event in new:
                self.faithful.apply(event)

    @rule(path=st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple))
    def insert(self, path: tuple[int, ...]) -> None:
        self.cache.insert(path)
        self.after_change()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.cache.paths:
            self.cache.remove_behind(data.draw(st.sampled_from(sorted(self.cache.paths))))
            self.after_change()

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.after_change()

    @rule(limit=st.none() | st.integers(1, 5))
    def read(self, limit: int | None) -> None:
        """The lazy one reads up to the end, or takes the whole state because it is too late."""
        while (number := self.lazy.next_sequence_number) < self.log.next_sequence_number:
            if number < self.log.oldest_sequence_number:
                with pytest.raises(EventGapError) as gap:
                    self.log.since(number, limit)
                assert (gap.value.wanted, gap.value.oldest) == (number, self.log.oldest_sequence_number)
                self.lazy = EventIndex.from_state(self.log.state_events(self.cache.runs()))
                break
            events = self.log.since(number, limit)
            assert 1 <= len(events) <= (limit or len(events))
            for event in events:
                self.lazy.apply(event)
        assert self.lazy.parent_of == self.cache.parent_of()

    @invariant()
    def replay_gives_the_state(self) -> None:
        self.log.check()
        self.faithful.check()
        self.lazy.check()
        assert self.faithful.parent_of == self.cache.parent_of()

    @invariant()
    def the_log_holds_as_many_of_the_latest_events_as_fit(self) -> None:
        held = self.log.since(self.log.oldest_sequence_number)
        assert num_named_blocks(held) <= self.capacity
        assert held == self.history[len(self.history) - len(held) :]
        if len(held) < len(self.history):
            assert num_named_blocks(self.history[len(self.history) - len(held) - 1 :]) > self.capacity


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_events_tell_what_was_reported() -> None:
    log = EventLog(100)
    tokens = pack_tokens([5, 6, 7, 8])
    log.stored(ROOT, [key("a"), key("b")], tokens, public=True)
    log.removed([key("b")], "evicted")
    log.cleared()
    assert log.since(1) == [
        BlocksStored(1, ROOT, keys("ab"), tokens, True),
        BlocksRemoved(2, keys("b"), "evicted"),
        CacheCleared(3),
    ]
    assert log.since(1)[0].num_tokens == 4
    assert log.since(2, limit=1) == [BlocksRemoved(2, keys("b"), "evicted")]
    assert log.since(4) == []
    assert (log.oldest_sequence_number, log.next_sequence_number) == (1, 4)


def test_an_event_larger_than_the_log_is_a_gap() -> None:
    log = EventLog(2)
    log.stored(ROOT, keys("abc"), bytes(12), public=True)
    assert log.oldest_sequence_number == log.next_sequence_number == 2
    with pytest.raises(EventGapError, match="event 1 comes next, but at hand are none before 2; take the"):
        log.since(1)
    assert log.since(2) == []


def test_memory_is_bounded_by_the_blocks_named() -> None:
    log = EventLog(100)
    for number in range(1000):
        log.stored(ROOT, keys("abcdefghij"[: 1 + number % 10]), bytes(4 * (1 + number % 10)), public=True)
        log.removed(keys("a"), "evicted")
        log.cleared()
    log.check()
    assert log.next_sequence_number == 3001
    assert 80 < num_named_blocks(log.since(log.oldest_sequence_number)) <= 100


def test_the_log_of_a_worker_that_started_again_is_another_one() -> None:
    """Its numbers are above those before, so a subscriber that resumes finds a gap and no wrong events."""
    before = EventLog(100, first_sequence_number=1000)
    before.stored(ROOT, keys("a"), bytes(4), public=True)
    after = EventLog(100, first_sequence_number=2000)
    with pytest.raises(EventGapError):
        after.since(before.next_sequence_number)
    with pytest.raises(EventGapError, match="event 2005 comes next, but at hand are 1000 to 1000"):
        before.since(2005)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EventLog(0), "capacity is 0; give room for at least 1 block"),
        (lambda: EventLog(1, first_sequence_number=0), "first_sequence_number is 0; give at least 1"),
        (lambda: EventLog(1).since(1, limit=0), "limit is 0; give at least 1, or None for all"),
    ],
)
def test_numbers_out_of_bounds_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    "report",
    [
        lambda log: log.stored(ROOT, [], b"", public=True),
        lambda log: log.stored(ROOT, keys("a"), b"", public=True),
        lambda log: log.stored(ROOT, keys("ab"), bytes(4 * 3), public=True),
        lambda log: log.removed([], "evicted"),
    ],
)
def test_a_cache_that_reports_nonsense_is_stopped(report: Callable[[EventLog], None]) -> None:
    log = EventLog(10)
    with pytest.raises(AssertionError):
        report(log)
    assert log.next_sequence_number == 1


def test_an_index_finds_the_hole_between_events() -> None:
    index = EventIndex()
    index.apply(stored(1, "root", "ab"))
    with pytest.raises(EventGapError, match="event 2 comes next, but at hand are 3 to 3") as gap:
        index.apply(stored(3, "b", "c"))
    assert (gap.value.wanted, gap.value.oldest) == (2, 3)
    assert dict(index.parent_of) == {key("a"): key("root"), key("b"): key("a")}
    index.apply(CacheCleared(2))
    assert not index.parent_of


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (stored(1, "root", "x"), "event 1 comes again; event 2 is the next"),
        (stored(2, "x", "yb"), "event 2: of its 2 blocks, 6200.* would be stored twice"),
        (stored(2, "c", "dd"), "stored twice"),
        (removed(2, "cx"), "event 2: of its 2 blocks, 7800.* would be removed but not held"),
        (removed(2, "cc"), "removed but not held"),
        (removed(2, "a"), "6100.* would be removed before what is behind it"),
        (removed(2, "abc"), "removed before what is behind it"),
        (removed(2, "cab"), "removed before what is behind it"),
    ],
)
def test_an_index_refuses_what_cannot_have_happened(event: Event, message: str) -> None:
    index = EventIndex()
    index.apply(stored(1, "root", "abc"))
    before = dict(index.parent_of)
    with pytest.raises(EventConflictError, match=message):
        index.apply(event)
    index.check()
    assert (index.parent_of, index.next_sequence_number) == (before, 2)
    index.apply(removed(2, "cba"))
    assert not index.parent_of


def test_removal_counts_the_children_of_every_branch() -> None:
    index = EventIndex()
    index.apply(stored(1, "root", "ab"))
    index.apply(stored(2, "a", "c"))
    with pytest.raises(EventConflictError):
        index.apply(removed(3, "ba"))
    index.apply(removed(3, "bca"))
    index.check()
    assert not index.parent_of


def test_a_state_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(EventConflictError, match="stored twice"):
        EventIndex.from_state(EventState([stored(5, "root", "a"), stored(5, "root", "a")], 6))


def test_a_state_bears_the_number_to_go_on_from() -> None:
    log = EventLog(100)
    runs = [CachedRun(ROOT, keys("ab"), bytes(8), True), CachedRun(key("a"), keys("c"), bytes(4), False)]
    for run in runs:
        log.stored(*run)
    state = log.state_events(runs)
    assert state == ([event._replace(sequence_number=2) for event in log.since(1)], 3)
    assert EventIndex.from_state(state).next_sequence_number == 3
    assert log.since(state.next_sequence_number) == []
    assert EventLog(100).state_events([]) == ([], 1)
