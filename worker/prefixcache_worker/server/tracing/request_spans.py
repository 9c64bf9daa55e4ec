"""What a trace says of a request: one span for it, and one for each part of its life in the engine.

Names are those of OpenTelemetry's semantic conventions for generative AI, which are still in development:
this file is the only place that knows them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from prefixcache_worker.engine.request import Request, Timing, Usage
from prefixcache_worker.server.request_record import RequestRecord

_OPERATIONS = {
    "Generate": "text_completion",
    "completions": "text_completion",
    "chat.completions": "chat",
    "CreatePrefix": "create_prefix",
}
"""By method; a Generate whose prompt is a conversation is a chat too."""
_FAULTS_OF_THE_SERVER = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""What a server's span counts as an error, by the conventions for gRPC."""

Attributes = dict[str, str | int | float]


class _Part(NamedTuple):
    """A part of a request's life, in seconds since it came to the engine."""

    name: str
    begin: float
    end: float


class RequestSpans:
    """Makes the spans of a request when it has ended: nothing is done for it before.

    They have no text, no token and no salt.
    """

    def __init__(
        self, provider: TracerProvider, *, model: str, wall_clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._tracer = provider.get_tracer("prefixcache_worker")
        self._model = model
        self._wall_clock_ns = wall_clock_ns

    def add(self, record: RequestRecord, code: grpc.StatusCode, *, now: float) -> None:
        """Hand the spans over, and wait for nothing. `now` is a reading of the record's clock."""
        end_ns = self._wall_clock_ns()

        def moment(reading: float) -> int:
            return end_ns - round((now - reading) * 1e9)

        operation = "chat" if record.is_chat else _OPERATIONS[record.method]
        parent = Context()
        if record.trace_context is not None:
            parent = TraceContextTextMapPropagator().extract({"traceparent": record.trace_context}, parent)
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            parent,
            kind=SpanKind.SERVER,
            attributes=self._attributes(operation, record, code),
            start_time=moment(record.begun),
        )
        if code in _FAULTS_OF_THE_SERVER:
            span.set_status(Status(StatusCode.ERROR))
        if record.timing is not None:
            inside = set_span_in_context(span, Context())
            arrived = max(record.begun, record.ended_in_engine - record.timing.total_seconds)
            for part in _parts(record.timing):
                self._tracer.start_span(part.name, inside, start_time=moment(arrived + part.begin)).end(
                    moment(arrived + part.end)
                )
        span.end(end_ns)

    def _attributes(self, operation: str, record: RequestRecord, code: grpc.StatusCode) -> Attributes:
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "prefixcache",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.id": record.request_id,
            "prefixcache.method": record.method,
            "prefixcache.tenant": record.tenant,
        }
        if code is not grpc.StatusCode.OK:
            attributes["error.type"] = code.name
        if record.request is not None:
            attributes |= _request_attributes(record.request)
        if record.usage is not None:
            attributes |= _usage_attributes(record.usage)
        return attributes


def _request_attributes(request: Request) -> Attributes:
    sampling = request.sampling
    attributes: Attributes = {
        "gen_ai.request.max_tokens": request.stop_conditions.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.choice.count": request.num_choices,
    }
    if sampling.seed is not None:
        attributes["gen_ai.request.seed"] = sampling.seed
    return attributes


def _usage_attributes(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.written_tokens,
    }


def _parts(timing: Timing) -> Iterator[_Part]:
    yield _Part("queue", 0.0, timing.queue_seconds)
    yield _Part("prefill", timing.queue_seconds, timing.first_token_seconds)
    yield _Part("decode", timing.first_token_seconds, timing.total_seconds)
