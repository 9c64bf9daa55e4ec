"""The one thread that steps the engine, and the bridge from it to asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from math import inf
from typing import TypeVar

from prefixcache_worker.engine.deadlines import Deadlines
from prefixcache_worker.engine.engine import Engine, Output
from prefixcache_worker.engine.request import Completion, Failure, Request
from prefixcache_worker.engine.request_stream import ReaderLimits, RequestStream
from prefixcache_worker.errors import (
    AbortedError,
    AuditError,
    DeadlineExceededError,
    DuplicateRequestError,
    EngineStoppedError,
    QueueFullError,
)

STEPS_UNDER_WAY = 4
"""The events of so many steps at most are on their way to the asyncio loop, so that a pause comes in time."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


class EngineLoop:
    """Steps the engine on a thread of its own while there is work, and sleeps when there is none.

    All methods are called on one asyncio loop, the one that runs at `start`. Only the thread touches the
    engine: everything else reaches it as a command between two steps. Requests go by keys of its own, so
    that an id that is used again can never meet events, or a cancellation, of the request that had it
    before.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_live_requests: int = 320,
        max_waiting_tokens: float = inf,
        reader_limits: ReaderLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes at most so many live requests, and at most so many prompt tokens whose answer has not begun;
        a prompt that is alone may be longer. `clock`: the engine's, and that of deadlines."""
        self._engine = engine
        self._reader_limits = reader_limits or ReaderLimits()
        self._clock = clock
        self._max_live_requests = max_live_requests
        self._max_waiting_tokens = max_waiting_tokens
        self._next_key = count(1)
        self._streams: dict[int, RequestStream] = {}  # of live requests; on the asyncio loop only
        self._stream_by_name: dict[tuple[str, str], RequestStream] = {}  # the same
        self._waiting_tokens: dict[int, int] = {}  # prompt tokens of those that no event has come of yet
        self._all_ended = asyncio.Event()
        self._broken = asyncio.Event()
        self._refusing = False
        self._deadlines = Deadlines()  # of requests that the engine has; on its thread only
        self._commands: list[Callable[[], object]] = []
        self._wake = threading.Condition()
        self._may_deliver = threading.Semaphore(STEPS_UNDER_WAY)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start stepping. Requires a running asyncio loop."""
        self._asyncio_loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: Request, *, deadline: float | None = None) -> RequestStream:
        """Hand a request to the engine; its events come from the stream.

        At the deadline, a reading of the clock, it ends with DeadlineExceededError: while it waits it never
        starts any more, and while it runs the step under way is its last.

        Raises at once, and takes nothing: InvalidRequestError (could never run), DuplicateRequestError
        (the tenant has a live request of this id), QueueFullError (too many live requests, or prompt
        tokens that wait for an answer's beginning), DeadlineExceededError (it has passed),
        EngineStoppedError (draining).
        """
        arrived = self._clock()
        if self._refusing:
            raise EngineStoppedError("the worker is shutting down; send the request to another one")
        if deadline is not None and deadline <= arrived:
            raise DeadlineExceededError("the deadline had passed before the request came; allow more time")
        self._engine.check_admissible(request)
        stream = RequestStream(
            next(self._next_key),
            request,
            self._reader_limits,
            cancel=self._cancel,
            set_paused=self._set_paused,
        )
        if stream.client_name in self._stream_by_name:
            raise DuplicateRequestError(
                f"request_id: a live request is already called {request.request_id!r}; choose another name"
            )
        if len(self._streams) >= self._max_live_requests:
            raise QueueFullError(f"{len(self._streams)} requests are running or waiting; try again later")
        num_waiting, num_tokens = sum(self._waiting_tokens.values()), len(request.prompt_token_ids)
        if num_waiting and num_waiting + num_tokens > self._max_waiting_tokens:
            raise QueueFullError(
                f"{num_waiting} prompt tokens wait, at most {self._max_waiting_tokens} may, "
                f"and these would be {num_tokens} more; try again later"
            )
        self._streams[stream.key] = stream
        self._waiting_tokens[stream.key] = num_tokens
        self._stream_by_name[stream.client_name] = stream
        self._all_ended.clear()

        def add() -> None:
            self._engine.add(stream.key, request, arrived=arrived)
            if deadline is not None:
                self._deadlines.add(stream.key, deadline)

        self._command(add)
        return stream

    def abort(self, tenant: str, request_id: str) -> bool:
        """End the tenant's live request of this id with AbortedError; False if there is none."""
        stream = self._stream_by_name.get((tenant, request_id))
        if stream is None:
            return False
        stream.fail(AbortedError("the request was aborted by another call of its tenant"))
        return True

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on the engine between two steps and return its result. Keep it short.

        Raises EngineStoppedError when the thread has ended.
        """
        if self._stopping:
            raise EngineStoppedError("the worker has stopped; ask another one")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def command() -> None:
            try:
                result = function(self._engine)
            except Exception as error:
                loop.call_soon_threadsafe(_settle, future, None, error)
            else:
                loop.call_soon_threadsafe(_settle, future, result, None)

        self._command(command)
        return await future

    @property
    def is_broken(self) -> bool:
        """Whether the engine's state may be wrong: `wait_broken` would return at once."""
        return self._broken.is_set()

    async def wait_broken(self) -> None:
        """Return when the engine can't go on, after an error that it could not give its requests up for."""
        await self._broken.wait()

    async def stop(self, *, drain_seconds: float) -> None:
        """Refuse new requests, let live ones finish for so long, fail the rest, end the thread."""
        self._refusing = True
        if self._streams:
            with contextlib.suppress(TimeoutError):  # those left are failed below
                await asyncio.wait_for(self._all_ended.wait(), drain_seconds)
        if self._streams:
            logger.warning("%d requests did not finish in time and are given up", len(self._streams))
        self._fail_streams("the worker shut down before the answer was complete; send it again")
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def audit(self) -> None:
        """Check that nothing is left of any request, and every invariant of the engine.

        Requires: `stop` has returned. Raises AuditError, with what is wrong in the log. O(blocks).
        """
        assert self._stopping
        assert not self._thread.is_alive()
        try:
            self._engine.check()
            stats = self._engine.stats()
            assert not self._streams, f"{len(self._streams)} requests are left"
            assert not stats.blocks.live, f"{stats.blocks.live} blocks are live"
            assert not stats.requests.running + stats.requests.waiting, stats.requests
        except Exception as error:  # whatever a broken structure makes of being looked at
            logger.exception("the audit found what must not be")
            raise AuditError("the audit found what must not be, see the log; report it") from error
        ended = stats.requests
        logger.info("audit: nothing is left of %d requests", ended.finished + ended.cancelled + ended.failed)

    def _cancel(self, stream: RequestStream) -> None:
        """Forget a stream; a no-op when it has ended."""
        if stream.key not in self._streams:
            return
        self._forget(stream)

        def cancel() -> None:
            self._engine.cancel(stream.key)
            self._deadlines.discard(stream.key)

        self._command(cancel)

    def _set_paused(self, stream: RequestStream, is_paused: bool) -> None:
        set_paused = self._engine.pause if is_paused else self._engine.resume
        self._command(lambda: set_paused(stream.key))

    def _forget(self, stream: RequestStream) -> None:
        del self._streams[stream.key]
        del self._stream_by_name[stream.client_name]
        self._waiting_tokens.pop(stream.key, None)
        if not self._streams:
            self._all_ended.set()

    def _fail_streams(self, sentence: str) -> None:
        for stream in list(self._streams.values()):
            stream.fail(EngineStoppedError(sentence))

    def _command(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _deliver(self, outputs: list[Output]) -> None:
        self._may_deliver.release()
        for key, event in outputs:
            assert isinstance(key, int)
            stream = self._streams.get(key)
            if stream is None:
                continue  # cancelled after this step began
            self._waiting_tokens.pop(key, None)
            stream.put(event)
            if isinstance(event, Completion | Failure):
                self._forget(stream)

    def _run(self) -> None:
        assert self._asyncio_loop is not None
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(
                        lambda: self._commands or self._stopping or self._engine.has_work,
                        self._seconds_to_deadline(),
                    )
                    commands, self._commands = self._commands, []
                    if self._stopping and not commands:
                        return
                for command in commands:
                    command()
                outputs = self._expire() + self._step()
                if outputs:
                    self._may_deliver.acquire()
                    self._asyncio_loop.call_soon_threadsafe(self._deliver, outputs)
        except Exception:
            logger.exception("the engine is broken and stops")
            self._asyncio_loop.call_soon_threadsafe(self._break)

    def _seconds_to_deadline(self) -> float | None:
        deadline = self._deadlines.next()
        if deadline is None:
            return None
        return min(
            max(0.0, deadline - self._clock()), threading.TIMEOUT_MAX
        )  # clients may say "in 300 years"

    def _expire(self) -> list[Output]:
        passed = self._deadlines.pop_passed(self._clock())
        for key in passed:
            self._engine.cancel(key)
        sentence = "the deadline passed before the answer was complete"
        return [Output(key, Failure(DeadlineExceededError(sentence))) for key in passed]

    def _step(self) -> list[Output]:
        if not self._engine.has_work:
            return []
        try:
            outputs = self._engine.step()
        except Exception as error:
            logger.exception("the engine step broke; all live requests are given up")
            outputs = self._engine.fail_all(error)
        for key, event in outputs:
            if isinstance(event, Completion | Failure):
                assert isinstance(key, int)
                self._deadlines.discard(key)
        return outputs

    def _break(self) -> None:
        self._refusing = self._stopping = True
        self._fail_streams("the worker's engine broke; send the request to another worker")
        self._broken.set()


def _settle(future: asyncio.Future[T], result: T | None, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
