"""What the log says of a request when it has ended."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from prefixcache_worker.engine.request import Usage
from prefixcache_worker.server.call_metadata import CallMetadata
from prefixcache_worker.server.status import row_of
from prefixcache_worker.server.validation.bounds import checked_request_id

logger = logging.getLogger(__name__)


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
    usage: Usage | None = None
    """Of its completion, once there is one. Whoever passes the completion on sets it."""

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
    ) -> RequestRecord:
        """A record under the message's id, or the metadata's, or a new one. Raises InvalidRequestError."""
        return cls(
            tenant=tenant,
            method=method,
            request_id=checked_request_id(request_id) or call.request_id or uuid.uuid4().hex,
            trace_context=call.trace_context,
            clock=clock,
            count=count,
        )

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Write the line, and count the request, when the block is left, however that comes about."""
        begun = self.clock()
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
            self._log(code, self.clock() - begun)
            self.count(self.method, code.name)

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
