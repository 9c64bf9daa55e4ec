"""Where tiers keep their rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prefixcache_worker.attention.tier_store import TierStore, file_tier, memory_tier
from prefixcache_worker.errors import ConfigError

CPU = torch.device("cpu")
RECORD_BYTES = 13


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path: Path) -> TierStore:
    if request.param == "memory":
        return memory_tier(5, RECORD_BYTES, device=CPU)
    return file_tier(str(tmp_path / "tier"), 5, RECORD_BYTES)


def test_records_come_back_as_they_were(store: TierStore) -> None:
    table = torch.arange(3 * RECORD_BYTES, dtype=torch.uint8).view(3, RECORD_BYTES)
    store.write([4, 0, 2], table)
    store.write([0], table[2:])
    assert store.num_places == 5
    assert store.read([2, 4, 0], CPU).equal(table[[2, 0, 2]])


def test_what_was_read_is_a_copy(store: TierStore) -> None:
    store.write([1], torch.ones((1, RECORD_BYTES), dtype=torch.uint8))
    table = store.read([1], CPU)
    store.write([1], torch.zeros((1, RECORD_BYTES), dtype=torch.uint8))
    assert table.eq(1).all()


def test_a_file_has_no_name_any_more(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    stores = [file_tier(str(path), 5, RECORD_BYTES) for _ in range(2)]  # two workers, one setting
    assert not path.exists()
    for value, store in enumerate(stores):
        store.write([0], torch.full((1, RECORD_BYTES), value, dtype=torch.uint8))
    assert [int(store.read([0], CPU)[0, 0]) for store in stores] == [0, 1]


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("dear")
    with pytest.raises(ConfigError, match="letter exists and would be overwritten; name a new file"):
        file_tier(str(path), 5, RECORD_BYTES)
    assert path.read_text() == "dear"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "tier"
    with pytest.raises(ConfigError, match=f"--tier-file: cannot make {path} with 65 bytes: No such file"):
        file_tier(str(path), 5, RECORD_BYTES)


def test_a_disk_without_room_is_no_tier(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    with pytest.raises(
        ConfigError, match=r"cannot make .*: .*; name a file on a disk with room, or ask for less"
    ):
        file_tier(str(path), 1 << 50, RECORD_BYTES)
    assert not path.exists()
