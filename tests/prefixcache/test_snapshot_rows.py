"""A whole snapshot: index and KV rows, saved and opened again."""

import mmap
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import each_damage
from support.snapshot_indexes import indexes

from prefixcache import BlockId, InvalidArgumentError, pack_tokens
from prefixcache.errors import SnapshotDamagedError, SnapshotMismatchError
from prefixcache.snapshot import open_snapshot, save_snapshot
from prefixcache.snapshot_file import open_snapshot_file, write_snapshot_file
from prefixcache.snapshot_index import SnapshotIndex, SnapshotNode, encode_index

HEADER = {"model_build": "smol 1", "block_size": 16, "dtype": "float32", "secret_id": "ab"}

TABLE_START = (100).to_bytes(8, "little")
"""Of rows of 100 bytes. Entries of 24 bytes follow: a place and a checksum each."""


def index_of_blocks(num_blocks: int) -> SnapshotIndex:
    """One public prompt of so many blocks of one token."""
    node = SnapshotNode(
        parent=None,
        domain=b"model",
        scope=b"",
        tenant="",
        edge=pack_tokens(range(num_blocks)),
        num_blocks=num_blocks,
        last_used=0,
        age_rank=0,
    )
    return SnapshotIndex(block_size=1, clock=0, nodes=[node])


class RowStore:
    """Rows of a pool, as a worker might have them."""

    def __init__(self, num_blocks: int, row_bytes: int, seed: int = 0) -> None:
        self.rows = np.random.default_rng(seed).integers(0, 256, (num_blocks, row_bytes), np.uint8)

    def write_row(self, block_id: BlockId) -> memoryview:
        return self.rows[block_id].data

    def read_row(self, block_id: BlockId, row: memoryview) -> None:
        self.rows[block_id] = row


def save_blocks(path: Path, store: RowStore) -> None:
    """A snapshot of all blocks of a store, in the order of their ids."""
    num_blocks = len(store.rows)
    save_snapshot(
        path,
        header=HEADER,
        index=index_of_blocks(num_blocks),
        block_ids=range(num_blocks),
        write_row=store.write_row,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.snapshot"


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(indexes(), st.sampled_from([0, 1, 63, 64, 100]), st.randoms(use_true_random=False))
def test_rows_come_back_into_other_blocks(
    path: Path, index: SnapshotIndex, row_bytes: int, random: Random
) -> None:
    num_blocks = index.num_blocks
    source, target = RowStore(num_blocks + 3, row_bytes, seed=1), RowStore(num_blocks + 5, row_bytes, seed=2)
    source_ids = random.sample(range(num_blocks + 3), num_blocks)
    target_ids = random.sample(range(num_blocks + 5), num_blocks)
    untouched = [block_id for block_id in range(num_blocks + 5) if block_id not in target_ids]
    before = target.rows.copy()
    saved = save_snapshot(path, header=HEADER, index=index, block_ids=source_ids, write_row=source.write_row)
    assert saved == (num_blocks, path.stat().st_size)
    with open_snapshot(path, header=HEADER) as snapshot:
        assert snapshot.index == index
        assert snapshot.has_rows
        assert snapshot.row_bytes == (row_bytes if num_blocks else 0)
        snapshot.read_rows(enumerate(target_ids), target.read_row)
    assert np.array_equal(target.rows[target_ids], source.rows[source_ids])
    assert np.array_equal(target.rows[untouched], before[untouched])


def test_b86_save_restore_save_is_identical(path: Path, tmp_path: Path) -> None:
    store, restored = RowStore(8, 100, seed=1), RowStore(8, 100, seed=2)
    index = index_of_blocks(4)
    save_snapshot(path, header=HEADER, index=index, block_ids=[5, 3, 0, 7], write_row=store.write_row)
    with open_snapshot(path, header=HEADER) as snapshot:
        snapshot.read_rows(enumerate([0, 1, 2, 3]), restored.read_row)
        save_snapshot(
            tmp_path / "again",
            header=snapshot.header,
            index=snapshot.index,
            block_ids=[0, 1, 2, 3],
            write_row=restored.write_row,
        )
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_some_rows_are_read_in_any_order(path: Path) -> None:
    """A smaller pool takes what it has room for."""
    store = RowStore(4, 64)
    save_blocks(path, store)
    rows = []
    with open_snapshot(path, header=HEADER) as snapshot:
        snapshot.read_rows([(3, 10), (1, 11)], lambda block_id, row: rows.append((block_id, bytes(row))))
        for number in (-1, 4):
            with pytest.raises(AssertionError, match=f"row {number} of 4"):
                snapshot.read_rows([(number, 12)], store.read_row)
    assert rows == [(10, store.rows[3].tobytes()), (11, store.rows[1].tobytes())]


def test_rows_can_be_mapped_at_an_aligned_place(path: Path) -> None:
    store = RowStore(3, 100)
    save_blocks(path, store)
    with open_snapshot_file(path) as file, path.open("rb") as raw:
        offset = file.section("rows").offset
        mapped = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
        assert offset % 64 == 0
        rows = [mapped[offset + 128 * number : offset + 128 * number + 100] for number in range(3)]
        mapped.close()
    assert rows == [row.tobytes() for row in store.rows]


@pytest.mark.parametrize("in_row", [0, 99, 100, 127])
def test_a_damaged_row_is_found_when_it_is_read_and_put_nowhere(path: Path, in_row: int) -> None:
    """The row, or what fills it up to 128 bytes."""
    store = RowStore(4, 100)
    save_blocks(path, store)
    with open_snapshot_file(path) as file:
        offset = file.section("rows").offset
    damaged = bytearray(path.read_bytes())
    damaged[offset + 2 * 128 + in_row] ^= 1
    path.write_bytes(damaged)
    block_ids: list[BlockId] = []
    with open_snapshot(path, header=HEADER) as snapshot:
        with pytest.raises(SnapshotDamagedError, match="row 2: expected checksum"):
            snapshot.read_rows(enumerate(range(4)), lambda block_id, row: block_ids.append(block_id))
        assert block_ids == [0, 1]
        snapshot.read_rows([(3, 3)], lambda block_id, row: block_ids.append(block_id))
    assert block_ids == [0, 1, 3]


def test_every_flipped_bit_and_every_cut_is_found(path: Path) -> None:
    store = RowStore(3, 10)
    save_blocks(path, store)
    for _ in each_damage(path):
        with pytest.raises(SnapshotDamagedError), open_snapshot(path, header=HEADER) as snapshot:
            snapshot.read_rows(enumerate(range(3)), lambda block_id, row: None)


def test_an_index_without_rows(path: Path) -> None:
    save_snapshot(path, header=HEADER, index=index_of_blocks(4))
    with open_snapshot(path, header=HEADER) as snapshot:
        assert snapshot.index == index_of_blocks(4)
        assert not snapshot.has_rows
        with pytest.raises(InvalidArgumentError, match="saved without rows"):
            snapshot.read_rows([], lambda block_id, row: None)


def test_b18_a_snapshot_of_another_model_is_refused(path: Path) -> None:
    save_snapshot(path, header=HEADER, index=index_of_blocks(4))
    with pytest.raises(
        SnapshotMismatchError, match="model_build is 'smol 1', the cache's is 'smol 2'"
    ) as error:
        open_snapshot(path, header={**HEADER, "model_build": "smol 2"})
    assert (error.value.field, error.value.in_file, error.value.in_cache) == (
        "model_build",
        "smol 1",
        "smol 2",
    )


def test_rows_of_different_lengths_are_refused(path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="row of block 9 has 3 bytes; give 2 as before"):
        save_snapshot(
            path,
            header=HEADER,
            index=index_of_blocks(2),
            block_ids=[8, 9],
            write_row={8: b"ab", 9: b"abc"}.__getitem__,
        )
    assert not list(path.parent.iterdir())


def test_rows_must_be_those_of_the_index(path: Path) -> None:
    with pytest.raises(AssertionError, match="1 rows for 2 blocks"):
        save_snapshot(
            path, header=HEADER, index=index_of_blocks(2), block_ids=[8], write_row=lambda block_id: b"row"
        )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"attachment": None}, "damaged in its attachment: expected a section, found none"),
        ({"index": None}, "damaged in its index: expected a section, found none"),
        ({"edges": None}, "damaged in its edges: expected a section, found none"),
        ({"row table": None}, "damaged in its row table: expected a section, found none"),
        ({"row table": b"short"}, "damaged in its row table: expected 2 entries"),
        ({"row table": TABLE_START + bytes(24)}, "row table: expected 2 entries"),
        ({"rows": bytes(128)}, "damaged in its rows: expected 2 rows of 100 bytes, found 128 bytes"),
        ({"row table": TABLE_START + 2 * bytes(24)}, "damaged in its rows: expected 2 rows of 100 bytes"),
    ],
)
def test_sections_that_do_not_fit_each_other_are_refused(
    path: Path, sections: dict[str, bytes | None], message: str
) -> None:
    """A file whose checksums are right, but which `save_snapshot` does not write."""
    table = TABLE_START + bytes(24) + (1).to_bytes(8, "little") + bytes(16)
    content = {
        **encode_index(index_of_blocks(2)),
        "attachment": b"",
        "rows": bytes(256),
        "row table": table,
        **sections,
    }
    write_snapshot_file(path, HEADER, {name: [data] for name, data in content.items() if data is not None})
    with pytest.raises(SnapshotDamagedError, match=message):
        open_snapshot(path, header=HEADER)
