"""A file that changes under a running worker."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.access.watched_file import WatchedFile


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def number(text: str) -> int:
    if text == "deep":
        raise RecursionError("maximum recursion depth exceeded")
    return int(text)


def replace(path: Path, text: str) -> None:
    """As every careful program does it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_a_change_counts_a_second_later(tmp_path: Path):
    path, clock = tmp_path / "n", Clock()
    path.write_text("1")
    file = WatchedFile("--n", path, number, clock=clock)
    replace(path, "2")

    clock.now += 0.99
    assert file.read() == 1
    clock.now += 0.01
    assert file.read() == 2


def test_it_is_looked_at_once_a_second_and_read_only_when_it_has_changed(tmp_path: Path):
    path, clock = tmp_path / "n", Clock()
    path.write_text("1")
    num_parsed = 0

    def parse(text: str) -> int:
        nonlocal num_parsed
        num_parsed += 1
        return int(text)

    file = WatchedFile("--n", path, parse, clock=clock)
    looks: list[Path] = []
    real = os.stat
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "prefixcache_worker.server.access.watched_file.os.stat", lambda at: looks.append(at) or real(at)
        )
        for _ in range(50):
            clock.now += 0.1
            assert file.read() == 1
    assert 4 <= len(looks) <= 5
    assert num_parsed == 1


@pytest.mark.parametrize("text", ["two", "\udcff", "deep"])
def test_while_the_new_one_is_broken_the_old_one_counts(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path, clock = tmp_path / "n", Clock()
    path.write_text("1")
    file = WatchedFile("--n", path, number, clock=clock)
    path.write_bytes(text.encode(errors="surrogateescape"))

    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.now += 1
            assert file.read() == 1
        [record] = caplog.records
        assert record.levelname == "WARNING"
        assert f"what {path} said before still counts: --n: {path}: " in record.getMessage()

        replace(path, "3")
        clock.now += 1
        assert file.read() == 3
    assert caplog.records[-1].getMessage() == f"{path} has been read again"


def test_while_it_is_gone_the_old_one_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path, clock = tmp_path / "n", Clock()
    path.write_text("1")
    file = WatchedFile("--n", path, number, clock=clock)
    path.unlink()
    for _ in range(3):
        clock.now += 1
        assert file.read() == 1
    [record] = caplog.records
    assert "cannot read" in record.getMessage()
    path.write_text("2")
    clock.now += 1
    assert file.read() == 2


def test_nothing_to_begin_with_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^--n: cannot read /no/such: No such file or directory$"):
        WatchedFile("--n", Path("/no/such"), number)
    (tmp_path / "n").write_text("x")
    with pytest.raises(ConfigError, match=rf"^--n: {tmp_path}/n: invalid literal"):
        WatchedFile("--n", tmp_path / "n", number)
