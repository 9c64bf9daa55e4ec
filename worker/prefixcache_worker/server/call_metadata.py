"""What a call may say about itself besides who makes it."""

from __future__ import annotations

import re
from typing import NamedTuple

from prefixcache_worker.server.access.access import Metadata
from prefixcache_worker.server.validation.bounds import MAX_REQUEST_ID_LENGTH, require

REQUEST_ID_KEY = "x-request-id"
TRACE_KEY = "traceparent"

_TRACE_CONTEXT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""The fields of a W3C trace context, level 1; a later version may add to them."""


class CallMetadata(NamedTuple):
    """The caller's own names for a call. None: it has none."""

    request_id: str | None
    trace_context: str | None


def call_metadata(metadata: Metadata) -> CallMetadata:
    """Read `x-request-id` and `traceparent`; the latter counts as absent unless it has its form.

    Raises InvalidRequestError.
    """
    metadata = tuple(metadata)
    request_ids = [value for key, value in metadata if key == REQUEST_ID_KEY]
    require(len(request_ids) <= 1, REQUEST_ID_KEY, f"sent {len(request_ids)} times; send it once")
    for request_id in request_ids:
        require(
            isinstance(request_id, str) and is_header_text(request_id),
            REQUEST_ID_KEY,
            f"must be 1 to {MAX_REQUEST_ID_LENGTH} printable ASCII characters",
        )
    traces = [value for key, value in metadata if key == TRACE_KEY and isinstance(value, str)]
    trace = _TRACE_CONTEXT.match(traces[0]) if len(traces) == 1 else None
    return CallMetadata(
        request_id=str(request_ids[0]) if request_ids else None,
        trace_context=trace[0] if trace is not None else None,
    )


def is_header_text(request_id: str) -> bool:
    """Whether metadata and headers can carry it."""
    return 1 <= len(request_id) <= MAX_REQUEST_ID_LENGTH and request_id.isascii() and request_id.isprintable()
