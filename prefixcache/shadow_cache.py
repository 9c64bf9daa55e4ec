"""What a cache of another size or with another credit would hold, without any blocks."""

from __future__ import annotations

from collections import OrderedDict

MAX_TURN = 6
"""Turns that are told apart; later ones count as this one."""


class Cohort:
    """Blocks behind each other on one path, last used by the same request at the same turn.

    Whoever uses one of them uses all that are above it. So they are taken out of it from the
    front, and a cache that drops some of them drops the last ones.
    """

    __slots__ = ("num_blocks", "tick", "turn")

    def __init__(self, tick: int, turn: int) -> None:
        self.tick = tick
        """Number of the request."""
        self.turn = turn
        self.num_blocks = 0


class ShadowCache:
    """Which blocks a cache would hold if nothing but their last use and their turn decided.

    It drops first what has the lowest tick, on which each turn counts as `credit_ticks` more; with
    0 of them this is lru. Deeper blocks on a path have no later use and no higher turn than those
    above them, so no tree is needed to know what goes first.

    Invariants, proved by `check`: of each cohort it holds a part, which is not empty, in the queue
    of its turn, the earliest first; no more than `capacity` blocks in all.
    """

    __slots__ = ("_capacity", "_num_blocks", "_queues", "credit_ticks", "num_hits")

    def __init__(self, capacity: int, credit_ticks: int) -> None:
        self._capacity = capacity
        self._num_blocks = 0
        self._queues: list[OrderedDict[Cohort, int]] = [OrderedDict() for _ in range(MAX_TURN + 1)]
        """By turn: how many blocks of each cohort it holds, always the first ones."""
        self.credit_ticks = credit_ticks
        self.num_hits = 0
        """Blocks asked for that were here; `TrafficSample` counts them."""

    def __contains__(self, cohort: Cohort) -> bool:
        return cohort in self._queues[cohort.turn]

    def take(self, cohort: Cohort, num_blocks: int) -> int:
        """The first blocks of a cohort are used, and leave it: how many of them are here. O(1).

        Requires: the cohort still counts them.
        """
        queue = self._queues[cohort.turn]
        num_held = queue.get(cohort, 0)
        if num_held > num_blocks:
            queue[cohort] = num_held - num_blocks
            num_held = num_blocks
        elif num_held:
            del queue[cohort]
        self._num_blocks -= num_held
        return num_held

    def put(self, cohort: Cohort, num_blocks: int) -> None:
        """Blocks come to the end of a cohort, which may be new. Amortised O(1).

        Requires: no cohort is later, and it does not count them yet.
        """
        queue = self._queues[cohort.turn]
        num_held = queue.get(cohort, 0)
        if num_held < cohort.num_blocks:
            return  # what is above them has been dropped, so they would not be found
        queue[cohort] = num_held + num_blocks
        self._num_blocks += num_blocks
        while self._num_blocks > self._capacity:
            self._drop(self._num_blocks - self._capacity)

    def clear(self) -> None:
        """Drop everything; the hits stay."""
        self._num_blocks = 0
        for queue in self._queues:
            queue.clear()

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        for turn, queue in enumerate(self._queues):
            assert all(cohort.turn == turn for cohort in queue)
            assert all(0 < num_held <= cohort.num_blocks for cohort, num_held in queue.items())
            ticks = [cohort.tick for cohort in queue]
            assert ticks == sorted(ticks)
        assert self._num_blocks == sum(sum(queue.values()) for queue in self._queues)
        assert self._num_blocks <= self._capacity

    def _drop(self, limit: int) -> None:
        """Drop up to so many blocks of the cohort that goes first. O(turns)."""
        heads = (next(iter(queue)) for queue in self._queues if queue)
        # Of equal ones the lower turn comes first, and with it what is deeper on a path.
        first = min(heads, key=lambda cohort: cohort.tick + cohort.turn * self.credit_ticks)
        queue = self._queues[first.turn]
        num_dropped = min(queue[first], limit)
        queue[first] -= num_dropped
        if not queue[first]:
            del queue[first]
        self._num_blocks -= num_dropped
