"""A KV store that remembers what each row was computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixcache import BlockCopy, BlockId

Row = tuple[bytes, tuple[int, ...]]
"""The domain, and every token up to and including the row's own: all that a KV row depends on."""


class SimulatedStore:
    """Rows by block and slot. A freed block loses its rows, so a stale read finds nothing."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._rows: dict[tuple[BlockId, int], Row] = {}
        self._saved: list[list[Row | None]] = []

    def poison(self, block_ids: Iterable[BlockId]) -> None:
        for block_id in block_ids:
            for slot in range(self._block_size):
                self._rows.pop((block_id, slot), None)

    def write(self, table: Sequence[BlockId], domain: bytes, tokens: Sequence[int], position: int) -> None:
        block_index, slot = divmod(position, self._block_size)
        self._rows[table[block_index], slot] = (domain, tuple(tokens[: position + 1]))

    def execute(self, copies: Iterable[BlockCopy]) -> None:
        """Copy only rows that exist; a test that reads a missing one fails there."""
        for source, target, num_slots in copies:
            for slot in range(num_slots):
                self._rows[target, slot] = self._rows[source, slot]

    def put(self, block_id: BlockId, rows: Sequence[Row | None]) -> None:
        """Overwrite a block; None stands for a row that nobody has written."""
        self.poison([block_id])
        for slot, row in enumerate(rows):
            if row is not None:
                self._rows[block_id, slot] = row

    def row(self, table: Sequence[BlockId], position: int) -> Row | None:
        block_index, slot = divmod(position, self._block_size)
        return self._rows.get((table[block_index], slot))

    def expect(
        self, table: Sequence[BlockId], domain: bytes, tokens: Sequence[int], positions: Iterable[int]
    ) -> None:
        """Fail unless the rows at `positions` are what computing `tokens` gives."""
        for position in positions:
            assert self.row(table, position) == (domain, tuple(tokens[: position + 1]))

    def write_row(self, block_id: BlockId) -> bytes:
        """What a snapshot keeps of a block: where a copy of its rows lies in this store."""
        self._saved.append([self._rows.get((block_id, slot)) for slot in range(self._block_size)])
        return (len(self._saved) - 1).to_bytes(8, "little")

    def read_row(self, block_id: BlockId, saved: memoryview) -> None:
        """Put into a block what `write_row` kept."""
        self.put(block_id, self._saved[int.from_bytes(saved, "little")])
