"""A snapshot: the index of a cache and, if the caller supplies them, the KV rows of its blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType

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
from prefixcache.snapshot_index import INDEX_SECTIONS, SnapshotIndex, decode_index, encode_index

RowWriter = Callable[[BlockId], Buffer]
"""Gives the KV of one block in all layers, as bytes. All rows have the same length."""

RowReader = Callable[[BlockId, memoryview], None]
"""Puts a row into a block. The memory is another row's after the call."""

_ROWS = "rows"
_ROW_TABLE = "row table"
_CHECKSUM_BYTES = 16


def save_snapshot(
    path: str | os.PathLike[str],
    *,
    header: HeaderFields,
    index: SnapshotIndex,
    block_ids: Sequence[BlockId] = (),
    write_row: RowWriter | None = None,
) -> int:
    """Save an index, and with `write_row` the rows of `block_ids`; return the bytes of the file.

    `header` says what the blocks are of: it will be compared as a whole. One row is held at a
    time. Whatever happens, at `path` is a whole snapshot, see `write_snapshot_file`.

    Requires: `block_ids` are the index's blocks in its order. Raises InvalidArgumentError when
    rows differ in length, OSError, or what `write_row` raises; nothing has changed then. O(bytes).
    """
    sections: dict[str, Iterable[Buffer]] = {name: [data] for name, data in encode_index(index).items()}
    if write_row is not None:
        assert len(block_ids) == index.num_blocks, f"{len(block_ids)} rows for {index.num_blocks} blocks"
        rows = _RowsToSave(block_ids, write_row)
        sections[_ROWS] = rows.rows()
        sections[_ROW_TABLE] = rows.table()  # iterated behind the rows
    return write_snapshot_file(path, header, sections)


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
        self.has_rows = _ROWS in file.sections
        self.row_bytes = 0
        """Length of each row."""
        self._num_rows = self.index.num_blocks
        self._checksums = b""
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
            self._file.read_into(_ROWS, number * len(padded), padded)
            start = number * _CHECKSUM_BYTES
            require_checksum(f"row {number}", padded, self._checksums[start : start + _CHECKSUM_BYTES])
            read_row(block_id, row)

    def _read_row_table(self) -> None:
        table, rows, num_rows = self._file.read(_ROW_TABLE), self._file.section(_ROWS), self._num_rows
        self.row_bytes, self._checksums = int.from_bytes(table[:8], "little"), table[8:]
        if len(table) != 8 + num_rows * _CHECKSUM_BYTES:
            raise SnapshotDamagedError(
                _ROW_TABLE, expected=f"{num_rows} checksums", found=f"{len(self._checksums)} bytes"
            )
        if rows.num_bytes != num_rows * _padded(self.row_bytes):
            raise SnapshotDamagedError(
                _ROWS, expected=f"{num_rows} rows of {self.row_bytes} bytes", found=f"{rows.num_bytes} bytes"
            )


class _RowsToSave:
    """The rows of blocks as two sections: the rows, and the table of their length and checksums."""

    def __init__(self, block_ids: Sequence[BlockId], write_row: RowWriter) -> None:
        self._block_ids = block_ids
        self._write_row = write_row
        self._row_bytes = 0
        self._checksums: list[bytes] = []

    def rows(self) -> Iterator[Buffer]:
        """Each row, and zeros up to where the next one is aligned."""
        for block_id in self._block_ids:
            row = memoryview(self._write_row(block_id))
            if not self._checksums:
                self._row_bytes = row.nbytes
            if row.nbytes != self._row_bytes:
                raise InvalidArgumentError(
                    f"the row of block {block_id} has {row.nbytes} bytes; give {self._row_bytes} as before"
                )
            zeros = bytes(_padded(row.nbytes) - row.nbytes)
            checksum = xxh3_128(row)
            checksum.update(zeros)
            self._checksums.append(checksum.digest())
            yield row
            yield zeros

    def table(self) -> Iterator[Buffer]:
        """Requires: all rows have been taken."""
        yield self._row_bytes.to_bytes(8, "little")
        yield from self._checksums


def _padded(num_bytes: int) -> int:
    return num_bytes + -num_bytes % ALIGNMENT
