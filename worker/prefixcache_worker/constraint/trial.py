"""The process in which rules are tried out: `python -m prefixcache_worker.constraint.trial FD`.

It reads a `Vocabulary` and then pairs (kind, text) from the connection at that file descriptor, and answers
each with "", or with why the rule cannot be used. A rule that takes too long, or too much, ends the process.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection

from prefixcache_worker.constraint.grammar import GrammarError, compile_rule

MAX_SECONDS = 1.0
"""Of computing, whatever else the machine does."""
MAX_DATA_BYTES = 1 << 30
STACK_BYTES = 1 << 20
"""Less than any thread of the worker has: what fits here, fits there."""


def serve(connection: Connection) -> None:
    """Try rules until the other end is closed."""
    index = connection.recv().make_index()
    connection.send("")
    while True:
        try:
            kind, text = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)  # what its signal does is to end the process
        reason = ""
        try:
            compile_rule(index, kind, text).deep_copy()
        except GrammarError as error:
            reason = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(reason)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker's business: it closes the connection
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve, args=(Connection(int(sys.argv[1])),))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
