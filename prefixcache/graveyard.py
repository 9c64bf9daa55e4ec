"""Takes large structures apart a little at a time, so that dropping them stops nobody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from prefixcache.radix_node import RadixNode


class Pile(Protocol):
    """A list or dictionary, sorted or not."""

    def __len__(self) -> int: ...


class Graveyard:
    """Holds the containers of trees that were forgotten until they have been emptied.

    Dropped at once, a large tree would be freed at once, and its cycles of parents and children
    would wait for the garbage collector to find them in one long pause.
    """

    __slots__ = ("_piles",)

    def __init__(self) -> None:
        self._piles: list[Any] = []

    def bury(self, piles: Iterable[Pile]) -> None:
        """Requires: nobody else uses them any more. O(piles)."""
        self._piles.extend(pile for pile in piles if len(pile))

    def dig(self, num_items: int) -> None:
        """Free up to so many items. O(num_items * log items), O(1) when nothing is left."""
        while self._piles and num_items:
            pile = self._piles[-1]
            item = pile.popitem()[1] if isinstance(pile, dict) else pile.pop()
            if isinstance(item, RadixNode):
                item.children = {}
                item.parent = None
                item.order_entry = None
            if not len(pile):
                self._piles.pop()
            num_items -= 1
