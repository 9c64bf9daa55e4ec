"""The one thread that steps the engine, and the bridge from it to asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from math import inf
from types import TracebackType
from typing import TypeVar

from prefixcache_worker.engine.engine import Engine, Output
from prefixcache_worker.engine.request import AnswerEvent, Completion, Event, Failure, Request
from prefixcache_worker.errors import DuplicateRequestError, EngineStoppedError, QueueFullError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class RequestStream:
    """The events of one request. Leaving the `async with` block cancels what still runs."""

    def __init__(self, key: int, request: Request, cancel: Callable[[RequestStream], None]) -> None:
        self.key = key
        self.client_name = (request.namespace.tenant, request.request_id)
        """What the client may know it by: unique among the tenant's live requests."""
        self._cancel = cancel
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cancel(self)

    async def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        """Its events, the completion last. Raises what ended the request if it could not be finished."""
        while not self._ended:
            event = await self._events.get()
            self._ended = isinstance(event, Completion | Failure)
            if isinstance(event, Failure):
                raise event.error
            yield event

    def take_ready(self) -> list[AnswerEvent]:
        """What has arrived and was not read yet, without waiting; a failure stays for the iterator."""
        ready: list[AnswerEvent] = []
        while not self._events.empty() and not self._ended:
            event = self._events.get_nowait()
            if isinstance(event, Failure):
                self._events.put_nowait(event)
                break
            self._ended = isinstance(event, Completion)
            ready.append(event)
        return ready

    def put(self, event: Event) -> None:
        """Called on the asyncio loop only."""
        self._events.put_nowait(event)


class EngineLoop:
    """Steps the engine on a thread of its own while there is work, and sleeps when there is none.

    `submit`, `call`, `stop` and `wait_broken` are called on one asyncio loop, the one that runs at
    `start`. Only the thread touches the engine: everything else reaches it as a command between two
    steps. Requests go by keys of its own, so that an id that is used again can never meet events, or a
    cancellation, of the request that had it before.
    """

    def __init__(
        self, engine: Engine, *, max_live_requests: int = 320, max_waiting_tokens: float = inf
    ) -> None:
        """Takes at most so many live requests, and at most so many prompt tokens whose answer has not begun;
        a prompt that is alone may be longer."""
        self._engine = engine
        self._max_live_requests = max_live_requests
        self._max_waiting_tokens = max_waiting_tokens
        self._next_key = count(1)
        self._streams: dict[int, RequestStream] = {}  # of live requests; on the asyncio loop only
        self._client_names: set[tuple[str, str]] = set()  # of the same
        self._waiting_tokens: dict[int, int] = {}  # prompt tokens of those that no event has come of yet
        self._all_ended = asyncio.Event()
        self._broken = asyncio.Event()
        self._refusing = False
        self._commands: list[Callable[[], object]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start stepping. Requires a running asyncio loop."""
        self._asyncio_loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: Request) -> RequestStream:
        """Hand a request to the engine; its events come from the stream.

        Raises at once, and takes nothing: InvalidRequestError (could never run), DuplicateRequestError
        (the tenant has a live request of this id), QueueFullError (too many live requests, or prompt
        tokens that wait for an answer's beginning), EngineStoppedError (draining).
        """
        if self._refusing:
            raise EngineStoppedError("the worker is shutting down; send the request to another one")
        self._engine.check_admissible(request)
        stream = RequestStream(next(self._next_key), request, self._cancel)
        if stream.client_name in self._client_names:
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
        self._client_names.add(stream.client_name)
        self._all_ended.clear()
        arrived = time.monotonic()
        self._command(lambda: self._engine.add(stream.key, request, arrived=arrived))
        return stream

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

    def _cancel(self, stream: RequestStream) -> None:
        """Forget a stream; a no-op when it has ended."""
        if stream.key in self._streams:
            self._forget(stream)
            self._command(lambda: self._engine.cancel(stream.key))

    def _forget(self, stream: RequestStream) -> None:
        del self._streams[stream.key]
        self._client_names.remove(stream.client_name)
        self._waiting_tokens.pop(stream.key, None)
        if not self._streams:
            self._all_ended.set()

    def _fail_streams(self, sentence: str) -> None:
        for stream in list(self._streams.values()):
            stream.put(Failure(EngineStoppedError(sentence)))
            self._cancel(stream)

    def _command(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _deliver(self, outputs: list[Output]) -> None:
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
                    self._wake.wait_for(lambda: self._commands or self._stopping or self._engine.has_work)
                    commands, self._commands = self._commands, []
                    if self._stopping and not commands:
                        return
                for command in commands:
                    command()
                outputs = self._step()
                if outputs:
                    self._asyncio_loop.call_soon_threadsafe(self._deliver, outputs)
        except Exception:
            logger.exception("the engine is broken and stops")
            self._asyncio_loop.call_soon_threadsafe(self._break)

    def _step(self) -> list[Output]:
        if not self._engine.has_work:
            return []
        try:
            return self._engine.step()
        except Exception as error:
            logger.exception("the engine step broke; all live requests are given up")
            return self._engine.fail_all(error)

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
