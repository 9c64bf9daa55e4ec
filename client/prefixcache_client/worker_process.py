"""A worker in a process of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from prefixcache_client.errors import PrefixCacheClientError

WITHOUT_KEYS = {"PREFIXCACHE_KEYS": ""}
"""Environment of a worker that a command starts for itself, whatever file the user has set for others."""
_READY_LINE = "listening on "


class WorkerProcessError(PrefixCacheClientError):
    """The worker did not start, or did not stop when asked."""


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM leave this block as SystemExit instead of ending the process at once.

    A program around it then ends its worker too. Requires: the main thread.
    """
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class WorkerProcess:
    """Starts `python -m prefixcache_worker` on a free loopback port and ends it again.

    >>> with WorkerProcess("--kv-memory", "1GiB") as worker:
    ...     client = Client(worker.wait_ready(timeout_seconds=60))

    Entering starts the process, leaving sends SIGTERM and waits until it is gone, whatever happened inside.
    Ctrl-C in the terminal reaches the caller alone, which then leaves the block: the worker has a session of
    its own.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """`arguments` are the worker's own; `environment` is added to this process's."""
        self._command = [sys.executable, "-m", "prefixcache_worker", "--address", "127.0.0.1:0", *arguments]
        self._environment = {**os.environ, **(environment or {})}
        self._address: str | None = None
        self._address_or_end = threading.Event()
        self.output_lines: list[str] = []
        """What the worker wrote to standard output so far."""

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()  # closed in __exit__
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        try:
            self._reader = threading.Thread(target=self._read_output, name="worker-output", daemon=True)
            self._reader.start()
        except BaseException:  # a signal just now: `__exit__` will not be called
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._reader.join()
            self._log.close()

    @property
    def process_id(self) -> int:
        """The id of the worker's process."""
        return self._process.pid

    def wait_ready(self, *, timeout_seconds: float) -> str:
        """The address where the worker listens, once it does.

        Raises WorkerProcessError with the worker's last words when it ends or is not ready in time.
        """
        if not self._address_or_end.wait(timeout_seconds):
            raise WorkerProcessError(f"the worker was not ready within {timeout_seconds:g} seconds")
        if self._address is None:
            status = self._process.wait()
            raise WorkerProcessError(self._last_log_line() or f"the worker ended with status {status}")
        return self._address

    def stop(self, *, timeout_seconds: float = 60.0) -> int:
        """Ask the worker to end, wait for it, and return its exit status. Does nothing when it has ended.

        Raises WorkerProcessError after killing a worker that is still there at the timeout.
        """
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise WorkerProcessError(
                f"the worker did not end within {timeout_seconds:g} seconds and was killed"
            ) from None
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def log(self) -> str:
        """What the worker wrote to standard error so far."""
        # The worker writes at the file offset that both processes share: read by position, leave it alone.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", errors="replace")

    def _last_log_line(self) -> str:
        lines = self.log().strip().splitlines()
        return lines[-1] if lines else ""

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.output_lines.append(line.rstrip("\n"))
                if self._address is None and line.startswith(_READY_LINE):
                    self._address = line.removeprefix(_READY_LINE).strip()
                    self._address_or_end.set()
        self._address_or_end.set()
