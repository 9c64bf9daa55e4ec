"""Where random operations take their choices from: a plain generator, or hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


class Chooser:
    """Makes choices out of integers."""

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        """`integer(low, high)` draws one, both included."""
        self.integer = integer

    def one_of(self, items: Sequence[_Item]) -> _Item:
        return items[self.integer(0, len(items) - 1)]

    def one_in(self, count: int) -> bool:
        """True once in so many times."""
        return self.integer(1, count) == count

    def bits(self, count: int) -> list[int]:
        """So many zeros and ones."""
        drawn = self.integer(0, (1 << count) - 1)
        return [drawn >> place & 1 for place in range(count)]
