"""Workers that a command starts for itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from prefixcache_client.command_line.serve import require_worker
from prefixcache_client.worker_process import WITHOUT_KEYS, WorkerProcess, sigterm_unwinds

_START_TIMEOUT_SECONDS = 300.0


@contextmanager
def own_workers(commands: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """A worker for each command's arguments, all started at once; their addresses, once all listen.

    They are gone when the block is left, by SIGTERM too. Raises WorkerProcessError when one does not start.
    Requires: the main thread.
    """
    require_worker()
    with ExitStack() as stack:
        stack.enter_context(sigterm_unwinds())
        workers = [
            stack.enter_context(WorkerProcess(*arguments, environment=WITHOUT_KEYS)) for arguments in commands
        ]
        yield [worker.wait_ready(timeout_seconds=_START_TIMEOUT_SECONDS) for worker in workers]


@contextmanager
def own_worker(*arguments: str) -> Iterator[str]:
    """One of them."""
    with own_workers([arguments]) as (address,):
        yield address
