"""Starting and ending a worker process. The worker here is a script of a few lines with the worker's name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from prefixcache_client.worker_process import WorkerProcess, WorkerProcessError

LISTENS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(" ".join(sys.argv[1:]), flush=True)
print("a warning", file=sys.stderr, flush=True)
print("listening on 127.0.0.1:4711", flush=True)
signal.pause()
"""
FAILS = """
import sys
print("Traceback", file=sys.stderr)
sys.exit("--model: no such file: /no/model.gguf")
"""
FAILS_SILENTLY = "raise SystemExit(3)"
NEVER_READY = "import signal; signal.pause()"
IGNORES_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("listening on 127.0.0.1:4711", flush=True)
while True: signal.pause()
"""


def stand_in(folder: Path, script: str) -> dict[str, str]:
    """The environment in which `python -m prefixcache_worker` runs `script`."""
    package = folder / "prefixcache_worker"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(script)
    return {"PYTHONPATH": str(folder)}


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_ready_at_the_address_it_prints_and_gone_afterwards(tmp_path: Path) -> None:
    with WorkerProcess("--kv-blocks", "8", environment=stand_in(tmp_path, LISTENS)) as worker:
        assert worker.wait_ready(timeout_seconds=60) == "127.0.0.1:4711"
        assert is_running(worker.process_id)
        assert worker.stop() == 0
        assert not is_running(worker.process_id)

    assert worker.output_lines == [
        "--address 127.0.0.1:0 --kv-blocks 8",
        "listening on 127.0.0.1:4711",
    ]


def test_its_log_can_be_read(tmp_path: Path) -> None:
    with WorkerProcess(environment=stand_in(tmp_path, LISTENS)) as worker:
        worker.wait_ready(timeout_seconds=60)
        worker.stop()
        assert worker.log() == "a warning\n"


def test_it_is_gone_when_the_block_raises(tmp_path: Path) -> None:
    worker = WorkerProcess(environment=stand_in(tmp_path, LISTENS))

    def interrupted() -> None:
        with worker:
            worker.wait_ready(timeout_seconds=60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_running(worker.process_id)


@pytest.mark.parametrize(
    ("script", "words"),
    [(FAILS, "^--model: no such file: /no/model.gguf$"), (FAILS_SILENTLY, "ended with status 3")],
)
def test_a_worker_that_ends_says_why(tmp_path: Path, script: str, words: str) -> None:
    with (
        WorkerProcess(environment=stand_in(tmp_path, script)) as worker,
        pytest.raises(WorkerProcessError, match=words),
    ):
        worker.wait_ready(timeout_seconds=60)


def test_a_worker_that_is_not_ready_in_time_is_an_error(tmp_path: Path) -> None:
    with WorkerProcess(environment=stand_in(tmp_path, NEVER_READY)) as worker:
        with pytest.raises(WorkerProcessError, match=r"not ready within 0\.1 seconds"):
            worker.wait_ready(timeout_seconds=0.1)
        assert is_running(worker.process_id)

    assert not is_running(worker.process_id)


def test_a_worker_that_does_not_end_is_killed_and_said_so(tmp_path: Path) -> None:
    with WorkerProcess(environment=stand_in(tmp_path, IGNORES_SIGTERM)) as worker:
        worker.wait_ready(timeout_seconds=60)
        with pytest.raises(WorkerProcessError, match=r"did not end within 0\.1 seconds and was killed"):
            worker.stop(timeout_seconds=0.1)
        assert not is_running(worker.process_id)


def test_it_runs_this_python(tmp_path: Path) -> None:
    script = f"import sys; sys.exit(0 if sys.executable == {sys.executable!r} else 1)"
    with (
        WorkerProcess(environment=stand_in(tmp_path, script)) as worker,
        pytest.raises(WorkerProcessError, match="status 0"),
    ):
        worker.wait_ready(timeout_seconds=60)
