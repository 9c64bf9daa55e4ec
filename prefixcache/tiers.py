"""Where blocks go that the pool has no room for, and the moves that this takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from prefixcache.block_keys import BlockKey
from prefixcache.block_pool import BlockId
from prefixcache.radix_node import RadixNode
from prefixcache.tier import Tier, TieredBlock, TieredPath, TierStats

POOL = 0
"""The number of the pool, where tiers have theirs."""

NumWorthRestoring = Callable[[Sequence[int]], int]
"""Given the tiers of blocks that follow one another: how many, from the first, to copy and not compute."""


class Place(NamedTuple):
    """Where the rows of a block are: a block of the pool, or a place of a tier."""

    tier: int
    """`POOL`, or the tier's number."""
    number: int
    """A block's id, or which of the tier's places it is."""


class TierMove(NamedTuple):
    """An order to copy all rows of a block to another place."""

    source: Place
    target: Place


class Tiers:
    """Tiers behind the pool, the nearest first: what one gives up, the next takes.

    A block that leaves the tree by eviction goes to the nearest tier, and leaves it again when a prompt
    brings it back: so pool and tiers together hold as many blocks as they have places. While blocks come
    back, though, the places that they leave are in use, and what is evicted for them may push others out.
    When a block was computed once more, for which it did not have to leave, the tier keeps what it has.
    About 300 bytes a block, and the tokens of its path, which blocks that are evicted together share.

    Moves are orders for whoever has the rows. They are to be executed one after the other as they were
    ordered, or so that nobody sees a difference, before any row of the pool is read or written again.
    Then it does not matter what became meanwhile of the blocks that they name.

    Invariants, proved by `check`: no key is in two tiers; nothing is reserved between two calls;
    those of every `Tier`.
    """

    __slots__ = ("_chunk_bytes", "_moves", "_num_worth_restoring", "_tiers")

    def __init__(
        self,
        sizes: Sequence[tuple[str, int]],
        *,
        chunk_bytes: int,
        num_worth_restoring: NumWorthRestoring = len,
    ) -> None:
        """`sizes` are names and blocks of the tiers. Raises InvalidArgumentError for a tier without room."""
        self._chunk_bytes = chunk_bytes
        self._num_worth_restoring = num_worth_restoring
        self._tiers = [Tier(name, num_blocks, number=1 + i) for i, (name, num_blocks) in enumerate(sizes)]
        self._moves: list[TierMove] = []

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def has_blocks(self) -> bool:
        return bool(self._tiers) and any(len(tier) for tier in self._tiers)

    @property
    def num_pending_moves(self) -> int:
        return len(self._moves)

    def take_moves(self) -> list[TierMove]:
        """The moves ordered since the last time, which the caller executes now."""
        moves, self._moves = self._moves, []
        return moves

    def get(self, key: BlockKey) -> TieredBlock | None:
        """What is kept under a key, in whatever tier. O(tiers)."""
        for tier in self._tiers:
            if block := tier.get(key):
                return block
        return None

    def demote(self, leaf: RadixNode, keys: Sequence[BlockKey]) -> None:
        """Keep the last blocks of a leaf, which are about to be evicted; `keys` are theirs.

        Requires: whole chunks. O(tokens of the path + blocks).
        """
        path, num_chunks = TieredPath.to(leaf), leaf.num_blocks
        behind = self.get(leaf.lost_key) if leaf.lost_key is not None else None
        if behind is not None and behind.path.agrees_with(path, num_chunks, self._chunk_bytes):
            path = behind.path  # one copy of the tokens, however small the parts that the path is lost in
        for block_id, key in zip(reversed(leaf.block_ids), reversed(keys), strict=False):
            kept = self.get(key)
            if kept is None:
                self._keep(key, path, num_chunks, Place(POOL, block_id), nearest=1)
            elif kept.num_chunks == num_chunks and kept.path.agrees_with(path, num_chunks, self._chunk_bytes):
                self._tiers[kept.tier - 1].touch(key)
            num_chunks -= 1

    def num_worth_restoring(self, blocks: Sequence[TieredBlock]) -> int:
        """How many of these, from the first, are copied sooner than computed."""
        return self._num_worth_restoring([block.tier for block in blocks]) if blocks else 0

    def take(self, blocks: Sequence[TieredBlock]) -> None:
        """The blocks leave, but their places stay reserved until `restore`. O(blocks)."""
        for block in blocks:
            self._tiers[block.tier - 1].take(block)

    def restore(
        self, blocks: Sequence[TieredBlock], block_ids: Sequence[BlockId], *, num_staying: int = 0
    ) -> None:
        """Order the copies to blocks of the pool. Requires: taken. The last `num_staying` stay. O(blocks)."""
        for i, (block, block_id) in enumerate(zip(blocks, block_ids, strict=True)):
            tier = self._tiers[block.tier - 1]
            self._moves.append(TierMove(Place(block.tier, block.place), Place(POOL, block_id)))
            is_staying = i >= len(blocks) - num_staying
            if is_staying and self.get(block.key) is None:  # else a block with an equal key came meanwhile
                tier.put_back(block)
            else:
                tier.free(block)

    def clear(self) -> None:
        """Forget everything. Moves that were ordered stay, since sequences may wait for them. O(places)."""
        for tier in self._tiers:
            tier.clear()

    def stats(self) -> tuple[TierStats, ...]:
        """The nearest first. O(tiers)."""
        return tuple(tier.stats() for tier in self._tiers)

    def check(self, num_pool_blocks: int) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(places)."""
        sizes = [num_pool_blocks, *(tier.num_blocks for tier in self._tiers)]
        for tier in self._tiers:
            tier.check(self._chunk_bytes)
        keys = [block.key for tier in self._tiers for block in tier]
        assert len(keys) == len(set(keys))
        for move in self._moves:
            assert move.source.tier != move.target.tier
            assert all(0 <= place.number < sizes[place.tier] for place in move)

    def _keep(self, key: BlockKey, path: TieredPath, num_chunks: int, source: Place, *, nearest: int) -> None:
        """Order a block's copy to the nearest tier that has a place for it or can make one."""
        for tier in self._tiers[nearest - 1 :]:
            number = nearest
            nearest += 1
            if tier.is_full:
                cold = tier.give_up_coldest()
                if cold is None:
                    continue
                self._keep(cold.key, cold.path, cold.num_chunks, Place(number, cold.place), nearest=nearest)
            place = tier.put(key, path, num_chunks)
            self._moves.append(TierMove(source, Place(number, place)))
            return
