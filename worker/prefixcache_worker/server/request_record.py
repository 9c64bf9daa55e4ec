"""What the log says of a request when it has ended."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import grpc

from prefixcache_worker.engine.request import Completion, Request, Timing, Usage
from prefixcache_worker.server.call_metadata import CallMetadata
from prefixcache_worker.server.status import row_of
from prefixcache_worker.server.validation.bounds import checked_request_id

logger = logging.getLogger(__name__)


class RequestTracer(Protocol):
    """Hears of every request that has ended."""

    def add(self, record: RequestRecord, code: grpc.StatusCode, *, now: float) -> None:
        """`now` is a reading of the record's clock. Does not wait for anything."""
        ...


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request as its door sees it. Has nothing of prompts, keys and salts."""

    tenant: str
    method: str
    request_id: str
    """The name that it goes by: never empty."""
    trace_context: str | None
    clock: Callable[[], float]
    count: Callable[[str, str], None]
    """Hears the method and the status code when the request has ended."""
    tracer: RequestTracer | None
    is_chat: bool = False
    """Whether its prompt is a conversation."""
    request: Request | None = None
    """What the engine was asked for, once it is known."""
    usage: Usage | None = None
    """Of its completion, once there is one."""
    timing: Timing | None = None
    """The same."""
    begun: float = 0.0
    """When it came to its door: a reading of the clock, as all moments here."""
    ended_in_engine: float = 0.0
    """When its completion came, if it did."""

    @classmethod
    def begin(
        cls,
        *,
        tenant: str,
        method: str,
        request_id: str,
        call: CallMetadata,
        clock: Callable[[], float],
        count: Callable[[str, str], None],
        tracer: RequestTracer | None = None,
    ) -> RequestRecord:
        """A record under the message's id, or the metadata's, or a new one. Raises InvalidRequestError."""
        return cls(
            tenant=tenant,
            method=method,
            request_id=checked_request_id(request_id) or call.request_id or uuid.uuid4().hex,
            trace_context=call.trace_context,
            clock=clock,
            count=count,
            tracer=tracer,
        )

    def note_completion(self, completion: Completion) -> None:
        """Whoever passes the completion on calls it."""
        self.usage, self.timing = completion.usage, completion.timing
        self.ended_in_engine = self.clock()

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Write the line, count and trace the request when the block is left, however that comes about."""
        self.begun = self.clock()
        code = grpc.StatusCode.OK
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.InternalError):
            # By the client, its deadline, or a write that found it gone.
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            code = row_of(error).code
            raise
        finally:
            now = self.clock()
            self._log(code, now - self.begun)
            self.count(self.method, code.name)
            if self.tracer is not None:
                self.tracer.add(self, code, now=now)

    def _log(self, code: grpc.StatusCode, seconds: float) -> None:
        counts = ""
        if self.usage is not None:
            counts = (
                f" prompt_tokens={self.usage.prompt_tokens} cached_tokens={self.usage.cached_tokens}"
                f" completion_tokens={self.usage.completion_tokens}"
            )
        # Names are quoted: a client chose them, and a line break in one must not begin a line here.
        logger.info(
            "%s tenant=%r request_id=%r trace=%s code=%s%s seconds=%.3f",
            self.method,
            self.tenant,
            self.request_id,
            self.trace_context or "-",
            code.name,
            counts,
            seconds,
        )
