"""The container: whole or refused, the one before or the new one."""

import errno
import mmap
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import each_damage
from support.killed_saves import KilledSave, kill_at_byte, kill_before, killed_save
from xxhash import xxh3_128_digest

from prefixcache.errors import SnapshotDamagedError, SnapshotMismatchError
from prefixcache.snapshot_file import open_snapshot_file, write_snapshot_file

HEADER = {"model_build": "smol 1", "block_size": 16}
SECTIONS = {"index": [b"some", b"thing"], "empty": [], "rows": [bytes(range(64)), b"x" * 64], "end": [b"\0"]}


def read_all(path: Path) -> dict[str, bytes]:
    with open_snapshot_file(path) as file:
        return {name: file.read(name) for name in file.sections}


def save_large(path: Path, letter: bytes) -> None:
    """A snapshot of several writes to the disk, in a form that tells who has made it."""
    write_snapshot_file(path, HEADER, {"rows": [letter * 5000] * 10, "index": [letter * 999]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.snapshot"


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(st.text(), st.text() | st.integers()),
    st.dictionaries(st.text(), st.lists(st.binary(max_size=200))),
)
def test_what_was_written_is_read(
    path: Path, header: dict[str, str | int], sections: dict[str, list[bytes]]
) -> None:
    num_bytes = write_snapshot_file(path, header, sections)
    assert num_bytes == path.stat().st_size
    with open_snapshot_file(path) as file:
        assert file.header == header
        assert list(file.sections) == list(sections)
    assert read_all(path) == {name: b"".join(items) for name, items in sections.items()}


def test_equal_content_is_an_equal_file(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write_snapshot_file(one, HEADER, SECTIONS)
    sections = {name: [bytearray(b"".join(items))] for name, items in SECTIONS.items()}
    write_snapshot_file(other, dict(reversed(HEADER.items())), sections)
    assert one.read_bytes() == other.read_bytes()


def test_sections_are_aligned_to_be_mapped(path: Path) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    with open_snapshot_file(path) as file, path.open("rb") as raw:
        mapped = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
        for name, (offset, num_bytes, checksum) in file.sections.items():
            assert offset % 64 == 0
            assert mapped[offset : offset + num_bytes] == b"".join(SECTIONS[name])
            assert checksum == xxh3_128_digest(b"".join(SECTIONS[name]))
        mapped.close()


def test_a_part_of_a_section_is_read_into_place(path: Path) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    with open_snapshot_file(path) as file:
        buffer = bytearray(10)
        file.read_into("rows", 60, memoryview(buffer)[2:])
        assert buffer == b"\0\0" + bytes(range(60, 64)) + b"xxxx"


@pytest.mark.parametrize("num_bytes", [0, 10_000, 50_000])
def test_a_file_cut_off_while_it_is_open_is_noticed(path: Path, num_bytes: int) -> None:
    save_large(path, b"a")
    with open_snapshot_file(path) as file:
        os.truncate(path, num_bytes)
        with pytest.raises(SnapshotDamagedError, match="rows: expected checksum"):
            file.read("rows")
        with pytest.raises(SnapshotDamagedError, match="rows: expected 50000 bytes"):
            file.read_into("rows", 40_000, bytearray(10_000))


def test_every_flipped_bit_and_every_cut_is_found(path: Path) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    for _ in each_damage(path):
        with pytest.raises(SnapshotDamagedError):
            read_all(path)


def test_what_stands_behind_a_snapshot_is_found(path: Path) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    num_bytes = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(
        SnapshotDamagedError, match=f"length: expected {num_bytes} bytes, found {num_bytes + 1}"
    ):
        open_snapshot_file(path)


@pytest.mark.parametrize("content", [b"", b"prefix", b"PK\3\4" + bytes(100), bytes(64), b"\x7fELF" * 40])
def test_a_file_that_is_no_snapshot_is_named_so(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(
        SnapshotDamagedError, match="damaged in its start: expected b'prefixkv', found b"
    ) as e:
        open_snapshot_file(path)
    assert e.value.section == "start"
    assert e.value.found == content[:8]


def test_the_damaged_section_is_named(path: Path) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    with open_snapshot_file(path) as file:
        offset = file.section("rows").offset
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    with open_snapshot_file(path) as file:
        assert file.read("index") == b"something"
        with pytest.raises(SnapshotDamagedError, match="damaged in its rows: expected checksum") as error:
            file.read("rows")
        assert error.value.section == "rows"
        with pytest.raises(
            SnapshotDamagedError, match="damaged in its tokens: expected a section, found none"
        ):
            file.read("tokens")


def with_start(content: bytes, **changes: int) -> bytes:
    """The file with other numbers in its first bytes, and the right checksum over them."""
    start = bytearray(content[:48])
    for name, value in changes.items():
        offset, num_bytes = {"version": (8, 4), "header_offset": (16, 8), "header_bytes": (24, 8)}[name]
        start[offset : offset + num_bytes] = value.to_bytes(num_bytes, "little")
    return bytes(start) + xxh3_128_digest(start) + content[64:]


def test_another_version_of_the_format_is_no_damage(path: Path) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    path.write_bytes(with_start(path.read_bytes(), version=3))
    with pytest.raises(SnapshotMismatchError, match="format version is 3, the cache's is 2"):
        open_snapshot_file(path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{}",
        b'{"fields": {}}',
        b'{"fields": 7, "sections": []}',
        b'{"fields": {}, "sections": [["index", "9", "00"]]}',
        b'{"fields": {}, "sections": [["index", 9]]}',
        b'{"fields": {}, "sections": [["index", 9, "no hex"]]}',
        b'{"fields": {}, "sections": [["index", 65, "00"]]}',
        b'{"fields": {}, "sections": [["index", 9, "00"], ["index", 0, "00"]]}',
    ],
)
def test_a_header_that_does_not_describe_the_file_is_refused(path: Path, header: bytes) -> None:
    """One section of 9 bytes, and a header whose checksum is right."""
    write_snapshot_file(path, HEADER, {"index": [b"something"]})
    content = with_start(path.read_bytes()[:128], header_bytes=len(header))
    start = content[:32] + xxh3_128_digest(header)
    path.write_bytes(start + xxh3_128_digest(start) + content[64:] + header)
    with pytest.raises(SnapshotDamagedError, match="damaged in its header"):
        open_snapshot_file(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"model_build": "smol 2", "block_size": 16}, "model_build is 'smol 1', the cache's is 'smol 2'"),
        ({"model_build": "smol 1", "block_size": 32}, "block_size is 16, the cache's is 32"),
        ({**HEADER, "dtype": "int8"}, "dtype is None, the cache's is 'int8'"),
        ({"block_size": 16}, "model_build is 'smol 1', the cache's is None"),
        ({"model_build": "smol 2", "block_size": 32}, "block_size is 16, the cache's is 32"),
    ],
)
def test_b18_a_snapshot_of_another_cache_is_refused(
    path: Path, header: dict[str, str | int], message: str
) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    with open_snapshot_file(path) as file:
        file.require_header(HEADER)
        with pytest.raises(SnapshotMismatchError, match=message):
            file.require_header(header)


def test_a_missing_file_is_an_error_of_the_system(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_snapshot_file(path)
    with pytest.raises(FileNotFoundError):
        write_snapshot_file(path / "file in a folder that is not there", HEADER, {})


def test_only_the_owner_can_read_a_snapshot(path: Path) -> None:
    write_snapshot_file(path, HEADER, SECTIONS)
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_open_snapshot_stays_the_same_when_the_next_one_is_saved(path: Path) -> None:
    write_snapshot_file(path, HEADER, {"index": [b"before"]})
    with open_snapshot_file(path) as file:
        write_snapshot_file(path, HEADER, {"index": [b"after"]})
        assert file.read("index") == b"before"
    assert read_all(path) == {"index": b"after"}


def test_sections_are_streamed_in_their_order(path: Path) -> None:
    """The second is asked for only when the first is complete, as a table of checksums needs it."""
    sizes: list[int] = []

    def rows() -> Iterator[bytes]:
        for size in (1, 2, 3):
            sizes.append(size)
            yield bytes(size)

    def table() -> Iterator[bytes]:
        yield bytes(sizes)

    write_snapshot_file(path, HEADER, {"rows": rows(), "table": table()})
    assert read_all(path) == {"rows": bytes(6), "table": b"\1\2\3"}


def test_a_rename_comes_after_the_bytes_are_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    sync, rename = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        is_folder = os.path.samestat(status, path.parent.stat())
        calls.append("sync folder" if is_folder else f"sync {status.st_size} bytes")
        sync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        calls.append(f"rename to {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    num_bytes = write_snapshot_file(path, HEADER, SECTIONS)
    assert calls == [f"sync {num_bytes} bytes", f"rename to {path.name}", "sync folder"]


@pytest.mark.parametrize("num_items", range(4))
def test_a_source_that_fails_changes_nothing(path: Path, num_items: int) -> None:
    def rows() -> Iterator[bytes]:
        yield from [b"x" * 10_000] * num_items
        raise KeyboardInterrupt

    write_snapshot_file(path, HEADER, SECTIONS)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write_snapshot_file(path, HEADER, {"rows": rows()})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("num_bytes", [0, 1, 63, 64, 8191, 8192, 30_000, 51_100])
def test_a_full_disk_changes_nothing(path: Path, num_bytes: int) -> None:
    save_large(path, b"a")
    before = path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            save_large(path, b"b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert error.value.errno == errno.EFBIG
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_only_leftovers_of_the_same_path_are_removed(path: Path) -> None:
    leftover = path.with_name(f".{path.name}.0123456789abcdef.partial")
    others = [
        path.with_name(f".other{path.name}.0123456789abcdef.partial"),
        path.with_name(".cache_snapshot.0123456789abcdef.partial"),
        path.with_name(f".{path.name}.1.0123456789abcdef.partial"),
        path.with_name(f"{path.name}.partial"),
    ]
    for file in (leftover, *others):
        file.write_bytes(b"half")
    write_snapshot_file(path, HEADER, SECTIONS)
    assert set(path.parent.iterdir()) == {path, *others}


def kill_saves(path: Path, kills: list[Callable[[], None]]) -> list[KilledSave]:
    """One save after the other, each over what the one before has left."""
    return [killed_save(path, partial(save_large, path, b"b"), kill) for kill in kills]


def test_b21_a_save_killed_at_any_byte_leaves_the_snapshot_before(path: Path) -> None:
    save_large(path, b"a")
    before = path.read_bytes()
    offsets = sorted(random.Random(21).sample(range(len(before)), 50))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh_process:
        saves = fresh_process.submit(
            kill_saves, path, [partial(kill_at_byte, offset) for offset in offsets]
        ).result()
    assert [save.signal for save in saves] == [signal.SIGXFSZ] * 50
    assert {save.file for save in saves} == {before}
    assert [save.num_bytes_aside for save in saves] == [[offset] for offset in offsets]
    save_large(path, b"b")
    assert read_all(path) == {"rows": b"b" * 50_000, "index": b"b" * 999}
    assert list(path.parent.iterdir()) == [path]


def test_b21_a_save_killed_at_any_step_leaves_one_of_the_two(path: Path) -> None:
    save_large(path, b"a")
    before = path.read_bytes()
    steps = [("fsync", 1), ("replace", 1), ("fsync", 2)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh_process:
        saves = fresh_process.submit(
            kill_saves, path, [partial(kill_before, function, call) for function, call in steps]
        ).result()
    save_large(path, b"b")
    after = path.read_bytes()
    assert [save.signal for save in saves] == [signal.SIGKILL] * 3
    assert [save.file for save in saves] == [before, before, after]
    assert [save.num_bytes_aside for save in saves] == [[len(after)], [len(after)], []]
