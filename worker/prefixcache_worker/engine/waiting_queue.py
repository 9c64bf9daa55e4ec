"""Who is next: priorities, then tenants by what they have been served, then what is cached."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from sortedcontainers import SortedKeyList

from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.engine.sequence import Sequence
from prefixcache_worker.engine.single_flight import Flight
from prefixcache_worker.engine.tenant_service import TenantService

LOOKAHEAD = 64
"""So many sequences of a tenant, the oldest, are compared by what is cached of them."""

Claim = tuple[bool, int, int]
"""What a sequence has to say for itself; the lowest goes first."""


class WaitingQueue:
    """Sequences that hold no blocks, and the order in which they get some.

    First come those that are overdue, in order of arrival. Then the highest priority; in it the tenant
    that has been served least; of that tenant what was preempted, then the longest cached prefix, then
    the oldest. So prompts with one prefix run one after the other, while it is there, and are read together.

    Every time a sequence is admitted that arrived later, a waiting one has been overtaken. After
    `max_overtakes` it is overdue, and stays so to its end. 0 is the order of arrival.

    A parked sequence has no place in the order: it waits for a prefill that computes its prefix. Nor has a
    paused one, which waits for its reader, and is not overtaken meanwhile.

    Invariant, proved by `check`: every sequence is in exactly one of the overdue, the groups by priority
    and tenant, the parked, and the paused.
    """

    def __init__(self, cache: CacheScheme[Any], service: TenantService, *, max_overtakes: int) -> None:
        self._cache = cache
        self._service = service
        self._max_overtakes = max_overtakes
        self._overdue = SortedKeyList(key=_age)
        self._groups: dict[tuple[int, str], SortedKeyList] = {}
        self._parked: dict[Sequence, Flight] = {}
        self._paused: set[Sequence] = set()
        self._num_cached_tokens: dict[Sequence, int] = {}
        """By sequence, as far as somebody has asked; see `expect_more_cached`."""
        self.num_promoted = 0
        """Sequences that have become overdue by being overtaken."""
        self.num_parked = 0
        """Times that one was parked."""

    def __len__(self) -> int:
        in_order = len(self._overdue) + sum(map(len, self._groups.values()))
        return in_order + len(self._parked) + len(self._paused)

    def __bool__(self) -> bool:
        return bool(self._groups or self._overdue or self._parked or self._paused)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._overdue, *self._groups.values(), self._parked, self._paused)

    def add(self, sequence: Sequence) -> None:
        """Let it wait, at the place of its age. O(log waiting)."""
        sequence.is_overdue = sequence.num_overtakes >= self._max_overtakes
        if sequence.is_paused:
            self._paused.add(sequence)
            return
        self._service.starts_waiting(sequence.tenant)
        self._place(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It waits no more. O(log waiting)."""
        if sequence in self._paused:
            self._paused.remove(sequence)
            return
        self._service.stops_waiting(sequence.tenant)
        self._displace(sequence)

    def first(self, blocked_tenants: Container[str] = ()) -> Sequence | None:
        """Who is next, parked ones and tenants that can't have more aside.

        O(groups + LOOKAHEAD), and a match for each of these that has not been looked for yet.
        """
        overdue: Sequence | None = next((s for s in self._overdue if s.tenant not in blocked_tenants), None)
        if overdue is not None:
            return overdue
        groups = [group for (_, tenant), group in self._groups.items() if tenant not in blocked_tenants]
        if not groups:
            return None
        group = min(groups, key=lambda group: (self.claim(group[0]), group[0].arrival))
        oldest: Sequence = group[0]
        if oldest.is_resumed or len(group) == 1:
            return oldest
        candidates: Iterator[Sequence] = islice(group, LOOKAHEAD)
        return max(candidates, key=self._num_cached)  # of equals the first, the oldest

    def claim(self, sequence: Sequence) -> Claim:
        """The order of those that wait, and of prefills that run; cached prefixes aside. O(1)."""
        if sequence.is_overdue:
            return (False, sequence.arrival, 0)
        return (True, -sequence.priority, self._service[sequence.tenant])

    def park(self, sequence: Sequence, flight: Flight) -> None:
        """Take it out of the order until the flight has ended. O(log waiting)."""
        self._displace(sequence)
        self._parked[sequence] = flight
        self.num_parked += 1

    def unpark_ended(self) -> None:
        """Put those whose flight has ended back to where they belong. O(parked)."""
        for sequence in [sequence for sequence, flight in self._parked.items() if flight.has_ended]:
            del self._parked[sequence]
            self._place(sequence)

    def count_overtake(self, sequence: Sequence) -> None:
        """A later one was admitted before this one, which waits or still prefills. O(log waiting).

        Requires: not paused.
        """
        sequence.num_overtakes += 1
        if sequence.is_overdue or sequence.num_overtakes < self._max_overtakes:
            return
        self.num_promoted += 1
        is_waiting = sequence.handle is None
        if is_waiting:
            self._displace(sequence)
        sequence.is_overdue = True
        if is_waiting:
            self._place(sequence)

    def expect_more_cached(self, sequence: Sequence, num_known_tokens: int) -> None:
        """A whole prompt is in the tree, and was not behind so many tokens: look again for those like it.

        What is evicted after somebody has looked for it costs nothing but its place in the order.
        O(sequences looked for) slices of a block.
        """
        block_size = self._cache.block_size
        for other in list(self._num_cached_tokens):
            if other.has_common_block(sequence, num_known_tokens // block_size, block_size):
                del self._num_cached_tokens[other]

    def may_outrank(self, running: Iterable[Sequence]) -> bool:
        """Whether any that waits has a higher priority than any that runs. O(running + groups + overdue)."""
        priorities = [sequence.priority for sequence in self._overdue]
        if self._groups:
            priorities.append(max(self._groups)[0])
        return bool(priorities) and max(priorities) > min(sequence.priority for sequence in running)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        sequences = list(self)
        assert len(set(sequences)) == len(sequences) == len(self)
        assert all(self._groups.values()), "an empty group"
        assert all(sequence.is_overdue for sequence in self._overdue)
        for (priority, tenant), group in self._groups.items():
            for sequence in group:
                assert (sequence.priority, sequence.tenant) == (priority, tenant)
        assert self._paused == {sequence for sequence in sequences if sequence.is_paused}
        for sequence in sequences:
            assert sequence.is_overdue == (sequence.num_overtakes >= self._max_overtakes)

    def _place(self, sequence: Sequence) -> None:
        if sequence.is_overdue:
            self._overdue.add(sequence)
            return
        key = (sequence.priority, sequence.tenant)
        if key not in self._groups:
            self._groups[key] = SortedKeyList(key=_age_within_group)
        self._groups[key].add(sequence)

    def _displace(self, sequence: Sequence) -> None:
        self._num_cached_tokens.pop(sequence, None)
        if self._parked.pop(sequence, None) is not None:
            return
        if sequence.is_overdue:
            self._overdue.remove(sequence)
            return
        key = (sequence.priority, sequence.tenant)
        self._groups[key].remove(sequence)
        if not self._groups[key]:
            del self._groups[key]

    def _num_cached(self, sequence: Sequence) -> int:
        num_tokens = self._num_cached_tokens.get(sequence)
        if num_tokens is None:
            num_tokens = self._num_cached_tokens[sequence] = sequence.match_in(self._cache).num_tokens
        return num_tokens


def _age(sequence: Sequence) -> tuple[int, int]:
    return sequence.arrival, sequence.index


def _age_within_group(sequence: Sequence) -> tuple[bool, int, int]:
    return not sequence.is_resumed, sequence.arrival, sequence.index
