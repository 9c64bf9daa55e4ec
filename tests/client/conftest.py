"""What the client's tests share."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from support.fake_worker import FakeWorker

from prefixcache_client.command_line import main as command_line


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    """A fake worker on a loopback port."""
    with FakeWorker() as fake:
        yield fake


@pytest.fixture
def run(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs one command line whose default address is the fake worker's; returns the exit code."""
    monkeypatch.setenv("PREFIXCACHE_ADDRESS", worker.address)
    monkeypatch.setenv("COLUMNS", "160")

    def run_command(*argv: str, stdin: str = "") -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        return command_line.main(argv)

    return run_command
