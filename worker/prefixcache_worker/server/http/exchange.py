"""One HTTP call: what came, what goes back, and what happens when the client leaves in between."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from prefixcache_worker.errors import SlowReaderError
from prefixcache_worker.server.access.access import Metadata
from prefixcache_worker.server.call_metadata import REQUEST_ID_KEY, call_metadata
from prefixcache_worker.server.http.errors import HttpError, response_from_error
from prefixcache_worker.server.large_requests import RequestRoom

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Reading JSON costs the engine's thread time too, about a second of it for the worst body of this size."""
BODY_SECONDS = 30.0
"""How long a body may take to arrive."""
WRITE_SECONDS = 60.0
"""How long an event may wait for its reader. Longer than the engine waits, so that the stream says why."""

T = TypeVar("T")


class Exchange:
    """One call. At most one of `reply` and `begin_events` is called, and once."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._request = Request(scope, receive)
        self._receive = receive
        self._send = send
        self._is_stream = False
        self._has_replied = False
        self._is_stuck = False
        self.request_id = uuid.uuid4().hex
        """The client's `x-request-id`, or a new one; goes back with every answer."""

    @property
    def headers(self) -> Metadata:
        """Names in lower case; any of them more than once."""
        return self._request.headers.items()

    def query(self, name: str) -> str | None:
        """The value behind a name in the address; None if there is none, the last of several."""
        return self._request.query_params.get(name)

    async def read_body(self, room: RequestRoom) -> bytes:
        """The body, which must say that it is JSON. Raises HttpError, QueueFullError, ClientDisconnect."""
        content_type = self._request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise HttpError(415, "unsupported_media_type", "send the header content-type: application/json")
        parts: list[bytes] = []
        num_bytes = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in self._request.stream():
                    num_bytes += len(part)
                    if num_bytes > MAX_BODY_BYTES:
                        raise HttpError(
                            413, "body_too_large", f"the body is longer than {MAX_BODY_BYTES} bytes"
                        )
                    room.grow_to(num_bytes)
                    parts.append(part)
        except TimeoutError as error:
            raise HttpError(
                408, "body_timeout", f"the body did not arrive within {BODY_SECONDS:g} seconds"
            ) from error
        return b"".join(parts)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled as soon as the client leaves.

        Requires: the body has been read. Raises ClientDisconnect, and what `work` raises.
        """
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._left())
        try:
            await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def reply(
        self, answer: BaseModel | bytes, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Send the whole answer: an object as JSON, or bytes whose content type is in `headers`."""
        self._has_replied = True
        if isinstance(answer, BaseModel):
            answer = answer.model_dump_json(exclude_unset=True).encode()
            headers = {"content-type": "application/json"} | (headers or {})
        response = Response(answer, status, {REQUEST_ID_KEY: self.request_id} | (headers or {}))
        await response(self._request.scope, self._receive, self._send)

    async def begin_events(self) -> None:
        """Begin a stream of server-sent events."""
        self._has_replied = self._is_stream = True
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # proxies of this kind would hold events back
            REQUEST_ID_KEY: self.request_id,
        }
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": int(HTTPStatus.OK), "headers": raw})

    async def send_event(self, data: str) -> None:
        """Send one event, as soon as the connection takes more: a slow reader makes this wait.

        Raises SlowReaderError after WRITE_SECONDS.
        """
        event = f"data: {data}\n\n".encode()
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._send({"type": "http.response.body", "body": event, "more_body": True})
        except TimeoutError as error:
            self._is_stuck = True
            raise SlowReaderError(f"nothing was read for {WRITE_SECONDS:g} seconds; read faster") from error

    async def end_events(self) -> None:
        """End the stream of events."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def run(self, handle: Callable[[Exchange], Awaitable[None]]) -> None:
        """Let `handle` answer; what it raises becomes the answer, or the last event of a stream."""
        try:
            self.request_id = call_metadata(self.headers).request_id or self.request_id
            if {"content-length", "transfer-encoding"}.issubset(self._request.headers.keys()):
                raise HttpError(
                    400,
                    "ambiguous_length",
                    "content-length and transfer-encoding are both given, and a proxy may have followed the "
                    "other one; send one of them",
                    headers={"connection": "close"},
                )
            await handle(self)
        except ClientDisconnect:
            pass  # nobody is there to be told
        except Exception as error:
            if self._is_stuck:
                return  # the server closes a connection whose answer is not complete
            status, headers, body = response_from_error(error)
            if self._is_stream:
                await self.send_event(body.model_dump_json())
                await self.end_events()
            elif not self._has_replied:
                await self.reply(body, status=status, headers=headers)

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Answered(Response):
    """A response that a function writes by itself, so that the client's leaving cancels it at once."""

    def __init__(self, handle: Callable[[Exchange], Awaitable[None]]) -> None:
        super().__init__()
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Exchange(scope, receive, send).run(self._handle)
