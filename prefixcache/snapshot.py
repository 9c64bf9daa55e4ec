"""A snapshot: the index of a cache and, if the caller supplies them, the KV rows of its blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack
from struct import Struct
from types import TracebackType
from typing import NamedTuple

from xxhash import xxh3_128

from prefixcache.block_pool import BlockId
from prefixcache.errors import InvalidArgumentError, SnapshotDamagedError
from prefixcache.snapshot_file import (
    ALIGNMENT,
    Buffer,
    HeaderFields,
    SnapshotFile,
    open_snapshot_file,
    require_checksum,
    write_snapshot_file,
)
from prefixcache.snapshot_index import INDEX_SECTIONS, SnapshotIndex, cut_index, decode_index, encode_index

RowWriter = Callable[[BlockId], Buffer]
"""Gives the KV of one block in all layers, as bytes. All rows have the same length."""

RowReader = Callable[[BlockId, memoryview], None]
"""Puts a row into a block. The memory is another row's after the call."""

ReadAttachment = Callable[[bytes], object]
"""Takes what was saved beside the index, and raises if it cannot use it."""

_ATTACHMENT = "attachment"
_ROWS = "rows"
_ROW_TABLE = "row table"
_ROW_ENTRY = Struct("<Q16s")
"""Of one block: the place of its row among the rows of the file, and the row's xxh3_128."""


class SavedSnapshot(NamedTuple):
    """What has been written."""

    num_blocks: int
    num_bytes: int
    """Of the file."""


def save_snapshot(
    path: str | os.PathLike[str],
    *,
    header: HeaderFields,
    index: SnapshotIndex,
    block_ids: Sequence[BlockId] = (),
    write_row: RowWriter | None = None,
    freed_ids: Set[BlockId] = frozenset(),
    attachment: bytes = b"",
) -> SavedSnapshot:
    """Save an index, with `write_row` the rows of `block_ids`, and an `attachment` as it is.

    `header` says what the blocks are of: it will be compared as a whole. One row is held at a
    time. Whatever happens, at `path` is a whole snapshot, see `write_snapshot_file`.

    Rows of `freed_ids` are not what they were. The set may grow on another thread meanwhile: what is
    in it when the last row has been read is left out, with all that is behind it.

    Requires: `block_ids` are the index's blocks in its order; a row changes only after its block has
    come into `freed_ids`. Raises InvalidArgumentError when rows differ in length, OSError, or what
    `write_row` raises; nothing has changed then. O(bytes).
    """
    saving = _Saving(index, block_ids, write_row, freed_ids)
    sections = saving.sections() | {_ATTACHMENT: [attachment]}
    num_bytes = write_snapshot_file(path, header, sections)
    return SavedSnapshot(saving.index.num_blocks, num_bytes)


def open_snapshot(path: str | os.PathLike[str], *, header: HeaderFields) -> Snapshot:
    """Open the snapshot of a cache with the same `header`, and verify all of it but the rows.

    Raises SnapshotDamagedError, SnapshotMismatchError, or OSError. O(bytes of the index).
    """
    with ExitStack() as on_error:
        file = on_error.enter_context(open_snapshot_file(path))
        file.require_header(header)
        snapshot = Snapshot(file)
        on_error.pop_all()
    return snapshot


class Snapshot:
    """An open snapshot. Its index is verified as a whole, each row when it is read.

    Goes on reading the same one when another is saved to its path.
    """

    def __init__(self, file: SnapshotFile) -> None:
        """Read all but the rows. Raises SnapshotDamagedError. O(bytes of the index)."""
        self._file = file
        self.header = file.header
        self.index = decode_index({name: file.read(name) for name in INDEX_SECTIONS})
        self.attachment = file.read(_ATTACHMENT)
        self.has_rows = _ROWS in file.sections
        self.row_bytes = 0
        """Length of each row."""
        self._num_rows = self.index.num_blocks
        self._row_entries = b""
        if self.has_rows:
            self._read_row_table()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read_rows(self, targets: Iterable[tuple[int, BlockId]], read_row: RowReader) -> None:
        """For each target, put the row of that number into that block.

        Rows have the numbers of their blocks in the index. Raises SnapshotDamagedError when a row is
        not as it was written, before it is put anywhere; the targets before it have theirs. Raises
        InvalidArgumentError when the snapshot has no rows. O(bytes), holding one row at a time.
        """
        if not self.has_rows:
            raise InvalidArgumentError("the snapshot was saved without rows; restore its index alone")
        padded = bytearray(_padded(self.row_bytes))
        row = memoryview(padded)[: self.row_bytes]
        for number, block_id in targets:
            assert 0 <= number < self._num_rows, f"row {number} of {self._num_rows}"
            place, checksum = _ROW_ENTRY.unpack_from(self._row_entries, number * _ROW_ENTRY.size)
            self._file.read_into(_ROWS, place * len(padded), padded)
            require_checksum(f"row {number}", padded, checksum)
            read_row(block_id, row)

    def _read_row_table(self) -> None:
        table, rows, num_rows = self._file.read(_ROW_TABLE), self._file.section(_ROWS), self._num_rows
        self.row_bytes, self._row_entries = int.from_bytes(table[:8], "little"), table[8:]
        if len(table) != 8 + num_rows * _ROW_ENTRY.size:
            raise SnapshotDamagedError(
                _ROW_TABLE, expected=f"{num_rows} entries", found=f"{len(self._row_entries)} bytes"
            )
        places = {place for place, _ in _ROW_ENTRY.iter_unpack(self._row_entries)}
        num_bytes_needed = (max(places, default=-1) + 1) * _padded(self.row_bytes)
        if len(places) != num_rows or num_bytes_needed > rows.num_bytes:
            raise SnapshotDamagedError(
                _ROWS, expected=f"{num_rows} rows of {self.row_bytes} bytes", found=f"{rows.num_bytes} bytes"
            )


class _Saving:
    """What becomes the sections of one snapshot: rows first, then the index of those that are right."""

    def __init__(
        self,
        index: SnapshotIndex,
        block_ids: Sequence[BlockId],
        write_row: RowWriter | None,
        freed_ids: Set[BlockId],
    ) -> None:
        self.index = index
        """Without the blocks that turned out to be freed, once all rows are taken."""
        self._block_ids = block_ids
        self._write_row = write_row
        self._freed_ids = freed_ids
        self._row_bytes = 0
        self._entry_by_number: dict[int, bytes] = {}
        """For each row taken: the block's number in the index, and what the row table says of it."""

    def sections(self) -> dict[str, Iterable[Buffer]]:
        """Requires: they are iterated one after the other."""
        encoded: dict[str, bytes] = {}  # not before all rows are taken
        sections: dict[str, Iterable[Buffer]] = {}
        if self._write_row is not None:
            num_blocks = self.index.num_blocks
            assert len(self._block_ids) == num_blocks, f"{len(self._block_ids)} rows for {num_blocks} blocks"
            sections[_ROWS] = self._rows(self._write_row)
            sections[_ROW_TABLE] = self._table()

        def encoded_section(name: str) -> Iterator[Buffer]:
            if not encoded:
                encoded.update(encode_index(self.index))
            yield encoded[name]

        return sections | {name: encoded_section(name) for name in INDEX_SECTIONS}

    def _rows(self, write_row: RowWriter) -> Iterator[Buffer]:
        """Each row, and zeros up to where the next one is aligned."""
        for number, block_id in enumerate(self._block_ids):
            if block_id in self._freed_ids:
                continue
            row = memoryview(write_row(block_id))
            place = len(self._entry_by_number)
            if not place:
                self._row_bytes = row.nbytes
            if row.nbytes != self._row_bytes:
                raise InvalidArgumentError(
                    f"the row of block {block_id} has {row.nbytes} bytes; give {self._row_bytes} as before"
                )
            zeros = bytes(_padded(row.nbytes) - row.nbytes)
            checksum = xxh3_128(row)
            checksum.update(zeros)
            self._entry_by_number[number] = _ROW_ENTRY.pack(place, checksum.digest())
            yield row
            yield zeros

    def _table(self) -> Iterator[Buffer]:
        """Length of a row, then an entry for each block of the index."""
        freed_ids = frozenset(self._freed_ids)  # in one go: it may be growing
        lost_numbers = {number for number, block_id in enumerate(self._block_ids) if block_id in freed_ids}
        kept_numbers: Iterable[int] = self._entry_by_number
        if lost_numbers:
            self.index, kept_numbers = cut_index(self.index, lost_numbers)
        yield self._row_bytes.to_bytes(8, "little")
        yield b"".join(self._entry_by_number[number] for number in kept_numbers)


def _padded(num_bytes: int) -> int:
    return num_bytes + -num_bytes % ALIGNMENT
