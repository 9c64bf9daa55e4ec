"""The container of a snapshot: named sections of bytes in one file, each with a checksum.

All numbers are little-endian, and every section begins at a multiple of 64 bytes, so that it can
be mapped into memory.

    offset  bytes
         0      8  magic
         8      4  format version
        12      4  zero
        16      8  offset of the header
        24      8  bytes of the header, which ends the file
        32     16  xxh3_128 of the header
        48     16  xxh3_128 of the 48 bytes before
        64         sections, each filled up with zeros, then the header: one JSON object of the
                   caller's fields and of every section's name, length and xxh3_128

Checksums find accidents. They do not stop anybody who wants to forge a snapshot.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from io import BufferedReader, BufferedWriter
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import NamedTuple

from xxhash import xxh3_128, xxh3_128_digest

from prefixcache.errors import SnapshotDamagedError, SnapshotMismatchError

FORMAT_VERSION = 2
ALIGNMENT = 64

HeaderFields = Mapping[str, str | int]
"""What the blocks of a snapshot are of, such as the model build, the block size and the dtype."""

Buffer = bytes | bytearray | memoryview

_MAGIC = b"prefixkv"
_START = Struct("<8sI4xQQ16s")
_START_BYTES = _START.size + 16


class Section(NamedTuple):
    """Where a section is, and what it must hash to."""

    offset: int
    num_bytes: int
    checksum: bytes


def write_snapshot_file(
    path: str | os.PathLike[str],
    header: HeaderFields,
    sections: Mapping[str, Iterable[Buffer]],
) -> int:
    """Put a snapshot at `path`, in the place of any before it, and return its bytes.

    It is written aside in the same folder, readable by its owner only, and renamed when it is
    safely on the disk. So whatever happens, at `path` is always a whole snapshot: the one before
    or the new one. A file aside is left only by a process that was killed; the next save removes it.

    Sections are written in their order, and each is iterated only when those before it are
    written. Requires: nobody else saves to `path` at the same time. Raises OSError, or what an
    iteration raises; nothing has changed then. O(bytes), holding one item of a section at a time.
    """
    path = Path(path)
    remove_leftovers(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(aside, "xb", opener=_open_private) as file:
            num_bytes = _write(file, header, sections)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return num_bytes


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the files aside that killed saves to the same path have left. Raises OSError."""
    path = Path(path)
    is_leftover = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.partial").fullmatch
    for sibling in path.parent.iterdir():
        if is_leftover(sibling.name):
            sibling.unlink(missing_ok=True)


def open_snapshot_file(path: str | os.PathLike[str]) -> SnapshotFile:
    """Open a snapshot, and verify all of it but the sections, which are verified as they are read.

    Raises SnapshotDamagedError, SnapshotMismatchError when its format is another one, or OSError.
    O(bytes of the header).
    """
    with ExitStack() as on_error:
        file = on_error.enter_context(open(path, "rb"))
        header, sections = _read_header(file)
        on_error.pop_all()
    return SnapshotFile(file, header, sections)


class SnapshotFile:
    """An open snapshot. Goes on reading the same one when another is saved to its path."""

    def __init__(self, file: BufferedReader, header: HeaderFields, sections: Mapping[str, Section]) -> None:
        self._file = file
        self.header = header
        self.sections = sections

    def __enter__(self) -> SnapshotFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def require_header(self, expected: HeaderFields) -> None:
        """Raise SnapshotMismatchError, naming the first field, unless the header is `expected`."""
        for field in sorted({*self.header, *expected}):
            in_file, in_cache = self.header.get(field), expected.get(field)
            if in_file != in_cache:
                raise SnapshotMismatchError(field, in_file=in_file, in_cache=in_cache)

    def section(self, name: str) -> Section:
        """Raises SnapshotDamagedError when there is none of this name."""
        if name not in self.sections:
            raise SnapshotDamagedError(name, expected="a section", found="none")
        return self.sections[name]

    def read(self, name: str) -> bytes:
        """A whole section, verified. Raises SnapshotDamagedError. O(bytes)."""
        offset, num_bytes, checksum = self.section(name)
        data = _read_at(self._file, offset, num_bytes)
        require_checksum(name, data, checksum)
        return data

    def read_into(self, name: str, start: int, buffer: bytearray | memoryview) -> None:
        """Fill `buffer` with the bytes of a section from `start` on, which are not verified.

        Requires: the section has them. Raises SnapshotDamagedError when the file ends. O(bytes).
        """
        offset, num_bytes, _ = self.section(name)
        self._file.seek(offset + start)
        num_read = self._file.readinto(buffer)
        if num_read < len(buffer):
            raise SnapshotDamagedError(name, expected=f"{num_bytes} bytes", found=f"{start + num_read}")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    """Make a rename in it last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: BufferedWriter, fields: HeaderFields, sections: Mapping[str, Iterable[Buffer]]) -> int:
    """Write everything, and return how many bytes it is."""
    file.write(bytes(_START_BYTES))  # known only when all else is written
    table = []
    for name, items in sections.items():
        checksum, num_bytes = xxh3_128(), 0
        for item in items:
            checksum.update(item)
            num_bytes += file.write(item)
        file.write(bytes(-num_bytes % ALIGNMENT))
        table.append([name, num_bytes, checksum.hexdigest()])
    header = json.dumps({"fields": dict(fields), "sections": table}, sort_keys=True).encode()
    header_offset = file.tell()
    file.write(header)
    start = _START.pack(_MAGIC, FORMAT_VERSION, header_offset, len(header), xxh3_128_digest(header))
    file.seek(0)
    file.write(start + xxh3_128_digest(start))
    return header_offset + len(header)


def _read_header(file: BufferedReader) -> tuple[HeaderFields, dict[str, Section]]:
    data = file.read(_START_BYTES)
    if len(data) < _START_BYTES or not data.startswith(_MAGIC):
        raise SnapshotDamagedError("start", expected=_MAGIC, found=data[: len(_MAGIC)])
    start = data[: _START.size]
    require_checksum("start", start, data[_START.size :])
    _, version, header_offset, header_bytes, checksum = _START.unpack(start)
    if version != FORMAT_VERSION:
        raise SnapshotMismatchError("format version", in_file=version, in_cache=FORMAT_VERSION)
    file_bytes = file.seek(0, os.SEEK_END)
    if file_bytes != header_offset + header_bytes:
        raise SnapshotDamagedError(
            "length", expected=f"{header_offset + header_bytes} bytes", found=f"{file_bytes}"
        )
    header = _read_at(file, header_offset, header_bytes)
    require_checksum("header", header, checksum)
    fields, sections = _parse_header(header, header_offset)
    for name, section in sections.items():
        end = section.offset + section.num_bytes
        padding = _read_at(file, end, -end % ALIGNMENT)
        if any(padding):
            raise SnapshotDamagedError(name, expected="zeros behind it", found=padding.hex())
    return fields, sections


def _parse_header(header: bytes, header_offset: int) -> tuple[HeaderFields, dict[str, Section]]:
    """The caller's fields, and the sections that fill the file up to the header."""
    sections: dict[str, Section] = {}
    offset = _START_BYTES
    try:
        content = json.loads(header)
        fields, table = dict(content["fields"]), content["sections"]
        for name, num_bytes, checksum in table:
            sections[name] = Section(offset, num_bytes, bytes.fromhex(checksum))
            offset += num_bytes + -num_bytes % ALIGNMENT
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotDamagedError("header", expected="fields and sections", found=repr(error)) from None
    if offset != header_offset or len(sections) < len(table):
        raise SnapshotDamagedError(
            "header", expected=f"sections up to byte {header_offset}", found=f"up to {offset}: {[*sections]}"
        )
    return fields, sections


def _read_at(file: BufferedReader, offset: int, num_bytes: int) -> bytes:
    file.seek(offset)
    return file.read(num_bytes)


def require_checksum(section: str, data: bytes | bytearray, checksum: bytes) -> None:
    """Raise SnapshotDamagedError unless this is the data's xxh3_128. O(bytes)."""
    found = xxh3_128_digest(data)
    if found != checksum:
        raise SnapshotDamagedError(
            section, expected=f"checksum {checksum.hex()}", found=f"checksum {found.hex()}"
        )
