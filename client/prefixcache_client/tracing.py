"""OpenTelemetry spans of requests, in programs that have set it up; nothing in all others."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from prefixcache.v1 import inference_pb2
from prefixcache_client.answers import Completion

try:
    from opentelemetry import propagate, trace
except ImportError:  # then nobody can have set it up
    trace = None  # type: ignore[assignment]

Metadata = tuple[tuple[str, str], ...]


class NoSpan:
    """Of calls that are not traced."""

    metadata: Metadata = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, event: object) -> None:
        """An event of the answer has come."""


class GenerateSpan:
    """Around one request for an answer, from the call to its last event. Names as in the conventions for
    generative AI.

    `metadata` tells the worker of it, so that its own spans become parts of this one. The span is never the
    current one: an iterator's caller may do other things between two events.
    """

    metadata: Metadata = ()

    def __init__(self, request: inference_pb2.GenerateRequest, *, address: str) -> None:
        operation = "chat" if request.HasField("chat") else "text_completion"
        self._name = operation
        host, _, port = address.rpartition(":")
        self._attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "prefixcache",
            "server.address": host,
            "server.port": int(port),
        }

    def __enter__(self) -> Self:
        self._span = trace.get_tracer("prefixcache_client").start_span(
            self._name, kind=trace.SpanKind.CLIENT, attributes=self._attributes
        )
        headers: dict[str, str] = {}
        propagate.inject(headers, trace.set_span_in_context(self._span))
        self.metadata = tuple(headers.items())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR))
        self._span.end()

    def note(self, event: object) -> None:
        """Take what the last event says of the answer."""
        if isinstance(event, Completion):
            usage = event.usage
            self._span.set_attributes(
                {
                    "gen_ai.response.id": event.request_id,
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": usage.completion_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                    "gen_ai.usage.cache_creation.input_tokens": usage.written_tokens,
                }
            )


Span = NoSpan | GenerateSpan
NO_SPAN = NoSpan()


def generate_span(request: inference_pb2.GenerateRequest, *, address: str) -> Span:
    """The span of a request, or of nothing where OpenTelemetry is not installed."""
    return NO_SPAN if trace is None else GenerateSpan(request, address=address)
