"""One worker, one folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.snapshots.snapshot_folder import SnapshotFolder


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path):
    SnapshotFolder(str(tmp_path / "a" / "b")).close()
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_second_worker_is_refused_until_the_first_has_gone(tmp_path: Path):
    first = SnapshotFolder(str(tmp_path))
    with pytest.raises(ConfigError, match=r"another worker uses .*; give each a folder of its own"):
        SnapshotFolder(str(tmp_path))
    first.close()
    SnapshotFolder(str(tmp_path)).close()


def test_the_folder_of_a_killed_worker_is_free(tmp_path: Path):
    child = os.fork()
    if child == 0:
        SnapshotFolder(str(tmp_path))
        os._exit(0)
    os.waitpid(child, 0)
    SnapshotFolder(str(tmp_path)).close()


@pytest.mark.parametrize("name", ["file", "file/folder"])
def test_a_folder_that_cannot_be_made_is_a_wrong_setting(tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--snapshot: cannot use .*(File exists|Not a directory)"):
        SnapshotFolder(str(tmp_path / name))


def test_leftovers_of_saves_are_removed_and_nothing_else(tmp_path: Path):
    kept = [tmp_path / "cache.snapshot", tmp_path / "notes.partial"]
    left = tmp_path / f".cache.snapshot.{'0f' * 8}.partial"
    for path in (*kept, left):
        path.touch()
    folder = SnapshotFolder(str(tmp_path))
    folder.remove_leftovers()
    folder.close()
    assert sorted(tmp_path.iterdir()) == kept
