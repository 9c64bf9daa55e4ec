"""A process of its own that meets every rule first."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

from prefixcache_worker.constraint.grammar import GrammarError, Vocabulary

ANSWER_SECONDS = 30.0
"""Far more than a trial may compute: even on a busy machine it takes so long only if it hangs."""
_DIED = (EOFError, OSError)  # what a connection raises when the other end is gone, or says nothing


class TrialProcess:
    """Finds out whether a rule can be compiled without harm. Any thread may use it.

    The library that compiles rules has no limit for all of them: a few hundred bytes can keep it busy for
    minutes, or overflow the stack, which no thread survives. So another process compiles each rule first,
    with limits on its time, memory and stack; if it dies, the rule is refused, and the next one gets a
    new process. The first rule starts it; it ends with this object, however the worker ends.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def check(self, kind: str, text: str) -> None:
        """Raise GrammarError if the rule cannot be used. One rule at a time; about a second for a bad one."""
        with self._lock:
            reason = self._ask(kind, text)
        if reason:
            raise GrammarError(reason)

    def _ask(self, kind: str, text: str) -> str:
        if self._running is None or self._running.process.poll() is not None:
            self._end()
            self._start()
        assert self._running is not None
        try:
            return self._running.ask((kind, text))
        except _DIED:
            self._end()
        return "it takes too much time or memory to compile, or is nested too deeply"

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", "prefixcache_worker.constraint.trial", str(theirs.fileno())]
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # where it would show pieces of the rule
                start_new_session=True,
            )
        self._running = _Running(ours, process)
        self._finalizer = weakref.finalize(self, self._running.end)
        try:
            self._running.ask(self._vocabulary)
        except _DIED as error:
            self._end()
            raise RuntimeError("the process that tries rules out does not start") from error

    def _end(self) -> None:
        if self._running is not None:
            self._finalizer()
            self._running = None


class _Running(NamedTuple):
    connection: Connection
    process: subprocess.Popen[bytes]

    def ask(self, question: object) -> str:
        """Its answer. Raises one of _DIED when none comes."""
        self.connection.send(question)
        if not self.connection.poll(ANSWER_SECONDS):
            raise TimeoutError
        answer: str = self.connection.recv()
        return answer

    def end(self) -> None:
        """End it, if it has not ended."""
        self.connection.close()
        self.process.kill()
        self.process.wait()
