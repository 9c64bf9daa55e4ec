"""Until when which request may run."""

from __future__ import annotations

from sortedcontainers import SortedSet


class Deadlines:
    """Moments on one clock, at most one for each key. Forgets a key only when told, or when its time is over.

    Invariant: both containers hold the same pairs.
    """

    def __init__(self) -> None:
        self._by_key: dict[int, float] = {}
        self._in_order: SortedSet[tuple[float, int]] = SortedSet()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, key: int, deadline: float) -> None:
        """Requires: the key has none. O(log keys)."""
        assert key not in self._by_key
        self._by_key[key] = deadline
        self._in_order.add((deadline, key))

    def discard(self, key: int) -> None:
        """Forget the key's deadline, if it has one. O(log keys)."""
        deadline = self._by_key.pop(key, None)
        if deadline is not None:
            self._in_order.remove((deadline, key))

    def next(self) -> float | None:
        """The earliest. O(log keys)."""
        return self._in_order[0][0] if self._in_order else None

    def pop_passed(self, now: float) -> list[int]:
        """The keys whose time is over, earliest first; they are forgotten. O(passed * log keys)."""
        passed: list[int] = []
        while self._in_order and self._in_order[0][0] <= now:
            _, key = self._in_order.pop(0)
            del self._by_key[key]
            passed.append(key)
        return passed
