"""How the `prefixcache` command ends: its exit code, and one sentence when something went wrong."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, abort, delta

from prefixcache_client.command_line import main as command_line

COMMAND = [sys.executable, "-m", "prefixcache_client.command_line.main"]

NOT_UTF8 = "caf\udce9"
"""How Python hands over an argument with a byte that is no UTF-8."""

Run = Callable[..., int]


def test_a_failed_call_is_1_and_one_sentence(
    run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        yield delta("never")

    worker.generate = behaviour

    assert run("generate", "hi") == 1

    assert capsys.readouterr().err == "prefixcache: the queue is full\n"


def test_what_a_server_says_steers_no_terminal(
    run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        abort(context, grpc.StatusCode.INTERNAL, "\x1b[2Jgone\x07")
        yield delta("never")

    worker.generate = behaviour

    assert run("generate", "hi") == 1

    assert capsys.readouterr().err == "prefixcache: \ufffd[2Jgone\ufffd\n"


def test_an_error_in_the_middle_begins_a_line_of_its_own(worker: FakeWorker) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delta("Hel", 5)
        abort(context, grpc.StatusCode.INTERNAL, "the engine failed")

    worker.generate = behaviour

    done = subprocess.run(
        [*COMMAND, "generate", "hi", "--address", worker.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    assert done.stdout == "Hel\nprefixcache: the engine failed\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dance"],
        ["stats", "--no-such-flag"],
        ["generate", "hi", "--max-token", "4"],
        ["bench", "shared-prefix", "--prefix", "4"],
        ["generate", "hi", "--max-tokens", "0"],
        ["generate", "hi", "--n", "many"],
        ["generate", "hi", "--tenant", "a\nb"],
        ["generate", "hi", "--deadline", "nan"],
        ["generate", "hi", "--deadline", "inf"],
        ["generate", "hi", "--top-k", "2147483648"],
        ["generate", "hi", "--seed", "18446744073709551616"],
        ["generate", NOT_UTF8],
        ["generate", "hi", "--system", NOT_UTF8],
        ["generate", "hi", "--stop", NOT_UTF8],
        ["generate", "hi", "--salt", NOT_UTF8],
        ["generate", "hi", "--tenant", NOT_UTF8],
        ["chat", "--system", NOT_UTF8],
        ["stats", "--address", NOT_UTF8],
        ["stats", "--address", "127.0.0.1"],
        ["demo", "--address", ":99999"],
        ["generate", "hi", "--public-system"],
        ["generate", "hi", "--public-tokens", "1", "--public-system", "--system", "s"],
        ["stats", "--json", "/no/such/folder/stats.json"],
        ["stats", "--json", os.curdir],
        ["bench"],
        ["demo", "--address", "127.0.0.1:1", "--", "--device", "cuda"],
    ],
)
def test_bad_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command_line.main(argv)

    assert exit_.value.code == 2
    assert "usage: prefixcache" in capsys.readouterr().err


def test_an_address_in_the_environment_is_checked_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFIXCACHE_ADDRESS", "127.0.0.1")

    with pytest.raises(SystemExit) as exit_:
        command_line.main(["stats"])

    assert exit_.value.code == 2
    assert "address must be HOST:PORT" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_1(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("x" * 300)

    assert run("stats", "--json", str(path)) == 1

    assert (
        capsys.readouterr().err == f"prefixcache: [Errno {errno.ENAMETOOLONG}] File name too long: '{path}'\n"
    )


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # as the locale decides
def test_input_that_is_no_text_is_1_and_one_sentence(
    worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    errors: str,
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)

    assert command_line.main([command, "--address", worker.address]) == 1

    assert capsys.readouterr().err == "prefixcache: standard input is not UTF-8 text\n"
    assert worker.requests == []


def test_a_deadline_is_kept(run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        worker.cancelled.wait(60)
        yield delta("never")

    worker.generate = behaviour

    assert run("generate", "hi", "--deadline", "0.2") == 1
    assert "the deadline passed before the answer was complete" in capsys.readouterr().err


def test_ctrl_c_is_130_and_cancels_the_call(worker: FakeWorker) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delta("Hello", 5)
        worker.cancelled.wait(60)

    worker.generate = behaviour
    with subprocess.Popen(
        [*COMMAND, "generate", "hi", "--address", worker.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == "Hello"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert errors == ""
    assert worker.cancelled.wait(60)


def test_a_reader_that_goes_away_leaves_no_traceback(worker: FakeWorker) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delta("Hello", 5)
        while context.is_active():
            yield delta("x" * 4096, 6)

    worker.generate = behaviour
    with subprocess.Popen(
        [*COMMAND, "generate", "hi", "--address", worker.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == "Hello"
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()

    assert process.returncode == 1
    assert errors == ""
