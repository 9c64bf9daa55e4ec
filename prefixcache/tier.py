"""One tier behind the pool: which evicted blocks it keeps, and where."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prefixcache.block_keys import BlockKey
from prefixcache.errors import InvalidArgumentError
from prefixcache.radix_node import RadixNode


class TieredPath(NamedTuple):
    """Where blocks stood in the tree: everything that their rows depend on, and who may read them."""

    domain: bytes
    tokens: bytes
    """Packed, from the root on. Blocks of one path share it, so those above the last use a part."""
    num_public_chunks: int
    """Chunks at the beginning that everybody in the domain may read."""
    scope: bytes
    """Of the chunks behind those."""

    @classmethod
    def to(cls, leaf: RadixNode) -> TieredPath:
        """The path to the end of a node. O(tokens)."""
        lineage = leaf.lineage()
        root = lineage[0].parent
        assert root is not None
        return cls(
            domain=root.scope,
            tokens=b"".join(node.edge for node in lineage),
            num_public_chunks=sum(len(node.block_ids) for node in lineage if node.is_public),
            scope=leaf.scope,
        )

    def readers(self, num_chunks: int) -> tuple[int, bytes] | None:
        """Who may read the last of the first `num_chunks`: None for everybody in the domain."""
        return None if num_chunks <= self.num_public_chunks else (self.num_public_chunks, self.scope)

    def agrees_with(self, other: TieredPath, num_chunks: int, chunk_bytes: int) -> bool:
        """Whether both have the same first `num_chunks`, for the same readers. O(their bytes)."""
        end = num_chunks * chunk_bytes
        return (
            self.domain == other.domain
            and self.tokens[:end] == other.tokens[:end]
            and self.readers(num_chunks) == other.readers(num_chunks)
        )


class TieredBlock(NamedTuple):
    """A block that a tier keeps: the rows of one whole chunk."""

    key: BlockKey
    """What it is found by. It proves nothing: whoever asks compares the path."""
    path: TieredPath
    num_chunks: int
    """It is the last of so many chunks of the path."""
    tier: int
    """Number of its tier, from 1 on."""
    place: int
    """Which of the tier's places its rows are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """Counts of one tier's blocks."""

    name: str
    num_blocks: int
    """Places that there are."""
    num_used: int
    num_stored: int
    """Blocks that have come to it."""
    num_restored: int
    """Blocks that went back from it to the pool."""
    num_evicted: int
    """Blocks that it dropped, or gave to the next tier, to make room."""


class Tier:
    """Places for `num_blocks` blocks, given up least recently stored first. Holds no rows.

    A tree loses its blocks from the tails, so the deeper of two blocks of a path is the colder one here.

    Invariant, proved by `check`: each place is free, kept or reserved, and only once.
    """

    __slots__ = (
        "_blocks",
        "_free_places",
        "_num_evicted",
        "_num_restored",
        "_num_stored",
        "_number",
        "_reserved",
        "name",
        "num_blocks",
    )

    def __init__(self, name: str, num_blocks: int, *, number: int) -> None:
        """All places free; the nearest tier has number 1. Raises InvalidArgumentError without any place."""
        if num_blocks < 1:
            raise InvalidArgumentError(f"num_blocks of tier {name!r} is {num_blocks}; give at least 1")
        self.name = name
        self.num_blocks = num_blocks
        self._number = number
        self._blocks: OrderedDict[BlockKey, TieredBlock] = OrderedDict()
        """The coldest first."""
        self._free_places = list(reversed(range(num_blocks)))
        self._reserved: set[int] = set()
        """Places whose rows are about to be read."""
        self._num_stored = 0
        self._num_restored = 0
        self._num_evicted = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[TieredBlock]:
        """The coldest first."""
        return iter(self._blocks.values())

    @property
    def is_full(self) -> bool:
        return not self._free_places

    def get(self, key: BlockKey) -> TieredBlock | None:
        """O(1)."""
        return self._blocks.get(key)

    def touch(self, key: BlockKey) -> None:
        """The block is as good as stored now. Requires: it is here. O(1)."""
        self._blocks.move_to_end(key)

    def put(self, key: BlockKey, path: TieredPath, num_chunks: int) -> int:
        """Keep a block in a free place, and return which. Requires: not full, no block of the key. O(1)."""
        assert key not in self._blocks
        place = self._free_places.pop()
        self._blocks[key] = TieredBlock(key, path, num_chunks, self._number, place)
        self._num_stored += 1
        return place

    def give_up_coldest(self) -> TieredBlock | None:
        """Drop the block stored longest ago; None when all places are reserved. Requires: full. O(1)."""
        if not self._blocks:
            return None
        _, block = self._blocks.popitem(last=False)
        self._free_places.append(block.place)
        self._num_evicted += 1
        return block

    def take(self, block: TieredBlock) -> None:
        """The block leaves, and its place stays reserved until `free` or `put_back`. O(1)."""
        del self._blocks[block.key]
        self._reserved.add(block.place)
        self._num_restored += 1

    def free(self, block: TieredBlock) -> None:
        """The place of a block that was taken may be used for another. O(1)."""
        self._reserved.remove(block.place)
        self._free_places.append(block.place)

    def put_back(self, block: TieredBlock) -> None:
        """A block that was taken stays after all. O(1)."""
        self._reserved.remove(block.place)
        self._blocks[block.key] = block

    def clear(self) -> None:
        """Drop everything. Requires: nothing is reserved. O(num_blocks)."""
        assert not self._reserved
        self._blocks.clear()
        self._free_places = list(reversed(range(self.num_blocks)))

    def stats(self) -> TierStats:
        """O(1)."""
        return TierStats(
            name=self.name,
            num_blocks=self.num_blocks,
            num_used=len(self._blocks),
            num_stored=self._num_stored,
            num_restored=self._num_restored,
            num_evicted=self._num_evicted,
        )

    def check(self, chunk_bytes: int) -> None:
        """Raise AssertionError if the invariant is broken. For tests. O(num_blocks)."""
        kept = [block.place for block in self._blocks.values()]
        assert sorted([*kept, *self._free_places, *self._reserved]) == list(range(self.num_blocks))
        for key, block in self._blocks.items():
            assert (block.key, block.tier) == (key, self._number)
            assert 0 < block.num_chunks * chunk_bytes <= len(block.path.tokens)
