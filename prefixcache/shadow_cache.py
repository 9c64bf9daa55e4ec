"""What a cache of another size or with another credit would hold, without any blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple


class Cohort:
    """Blocks behind each other on one path, last used by the same request at the same turn.

    Whoever uses one of them uses all that are above it. So they are taken out of it from the
    front, and a cache that drops some of them drops the last ones.
    """

    __slots__ = ("is_whole", "num_blocks", "serial", "tick", "turn")

    def __init__(self, serial: int, tick: int, turn: int, num_blocks: int) -> None:
        self.serial = serial
        """Of cohorts on one path that a request uses, the deepest has the highest."""
        self.tick = tick
        """Number of the request."""
        self.turn = turn
        self.num_blocks = num_blocks
        self.is_whole = True
        """Whether no shadow cache has dropped anything of it."""


class Footprint(NamedTuple):
    """What the last use of a path has left: nothing else has used any of it, as long as this is true."""

    num_blocks: int
    """Length of the path."""
    turn: int
    """That of its last node; those above have no lower one."""
    cohorts: tuple[tuple[Cohort, int], ...]
    """All that its sampled blocks are in, with their sizes. They hold nothing else."""

    def is_true(self, num_blocks: int, turn: int) -> bool:
        """Whether a path of this length whose last node has this turn has been left alone. O(cohorts)."""
        if num_blocks != self.num_blocks or turn != self.turn:
            return False
        for cohort, num_then in self.cohorts:  # noqa: SIM110, this is faster
            if cohort.num_blocks != num_then:
                return False
        return True


class ShadowCache:
    """Which blocks a cache would hold if nothing but their last use and their turn decided.

    It drops first what has the lowest tick, on which each turn counts as `credit_ticks` more; with
    0 of them this is lru. Blocks deeper on a path have no later use and no higher turn than those
    above them, so no tree is needed to know what goes first.

    A cohort whose tick advances keeps its place in the heap until it comes to the top of it: so a use
    of a whole cohort is the same for all shadow caches, and costs none of them anything.

    Invariants, proved by `check`: it holds no more than `capacity` blocks; of each cohort in here the
    first ones, at least one; each has one place in the heap, which is no later than its own.
    """

    __slots__ = ("_capacity", "_credit_ticks", "_heap", "_num_blocks", "_num_held", "num_misses")

    def __init__(self, capacity: int, credit_ticks: int) -> None:
        self._capacity = capacity
        self._credit_ticks = credit_ticks
        self._num_blocks = 0
        self._num_held: dict[Cohort, int] = {}
        self._heap: list[tuple[int, int, int, Cohort]] = []
        """Cohorts by what goes first; also some that are not here any more."""
        self.num_misses = 0
        """Blocks asked for that were not here, counted by whoever asks."""

    def __iter__(self) -> Iterator[Cohort]:
        """The cohorts of which it holds something, in no order."""
        return iter(self._num_held)

    def use(self, taken: Mapping[Cohort, int], cohort: Cohort) -> int:
        """Blocks become a new cohort: some the first ones of others, so many of each. How many were not here.

        O(cohorts taken from), and O(log cohorts) for each one that is dropped, amortised.
        """
        num_held, num_hits = self._num_held, 0
        for former, num_taken in taken.items():
            num_here = num_held.get(former, 0)
            if num_here > num_taken:
                num_held[former] = num_here - num_taken
                num_hits += num_taken
            elif num_here:
                del num_held[former]
                num_hits += num_here
        self._num_blocks -= num_hits
        self._add(cohort)
        return cohort.num_blocks - num_hits

    def renew(self, cohort: Cohort) -> int:
        """All of a cohort is used again, as its tick says. How many were not here. O(log cohorts)."""
        num_here = self._num_held.get(cohort, 0)
        if num_here:
            self._num_held[cohort] = cohort.num_blocks
            self._num_blocks += cohort.num_blocks - num_here
            self._make_room()
        else:
            self._add(cohort)
        return cohort.num_blocks - num_here

    def give_credit(self, credit_ticks: int) -> None:
        """Drop by another rule from now on. O(cohorts)."""
        self._credit_ticks = credit_ticks
        self._order_anew()

    def clear(self) -> None:
        """Drop everything; what was missed stays."""
        self._num_blocks = 0
        self._num_held.clear()
        self._heap.clear()

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        assert self._num_blocks == sum(self._num_held.values()) <= self._capacity
        assert all(0 < num <= cohort.num_blocks for cohort, num in self._num_held.items())
        places = [place for place in self._heap if place[-1] in self._num_held]
        assert {place[-1] for place in places} == self._num_held.keys()
        assert len(places) == len(self._num_held)
        assert all(place <= self._place(place[-1]) for place in places)

    def _place(self, cohort: Cohort) -> tuple[int, int, int, Cohort]:
        """What goes first; of equal ones, what is deepest on a path."""
        return cohort.tick + cohort.turn * self._credit_ticks, cohort.turn, -cohort.serial, cohort

    def _add(self, cohort: Cohort) -> None:
        self._num_held[cohort] = cohort.num_blocks
        heappush(self._heap, self._place(cohort))
        self._num_blocks += cohort.num_blocks
        self._make_room()
        if len(self._heap) > 2 * len(self._num_held) + 16:
            self._order_anew()

    def _make_room(self) -> None:
        heap, num_held = self._heap, self._num_held
        while self._num_blocks > self._capacity:
            cohort = heap[0][-1]
            place = self._place(cohort)
            if cohort not in num_held:
                heappop(heap)
            elif place > heap[0]:
                heapreplace(heap, place)
            else:
                cohort.is_whole = False
                num_dropped = min(num_held[cohort], self._num_blocks - self._capacity)
                num_held[cohort] -= num_dropped
                self._num_blocks -= num_dropped
                if not num_held[cohort]:
                    del num_held[cohort]
                    heappop(heap)

    def _order_anew(self) -> None:
        self._heap = list(map(self._place, self._num_held))
        heapify(self._heap)
