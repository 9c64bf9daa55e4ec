"""Where spans go: to an OpenTelemetry collector, over gRPC."""

from __future__ import annotations

import asyncio
import threading
from importlib.metadata import version
from urllib.parse import urlsplit

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from prefixcache_worker.server.request_record import RequestRecord
from prefixcache_worker.server.tracing.request_spans import RequestSpans

EXPORT_SECONDS = 5
"""How long sending one batch may take; then it is dropped, with a line in the log."""


class OtlpTraces:
    """Sends the spans of requests in batches, from a thread of its own that never holds up a request."""

    def __init__(self, endpoint: str, *, model: str) -> None:
        """`endpoint` is the URL of a collector: http, or https with the certificates of the system.

        What else OpenTelemetry can be told, such as the share of traces to keep, it takes from its own OTEL_*
        variables.
        """
        # gRPC refuses all calls of a channel whose credentials have not the endpoint's scheme.
        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=urlsplit(endpoint).scheme == "http", timeout=EXPORT_SECONDS
        )
        resource = Resource.create({SERVICE_NAME: "prefixcache", SERVICE_VERSION: version("prefixcache")})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._spans = RequestSpans(self._provider, model=model)

    def add(self, record: RequestRecord, code: grpc.StatusCode, *, now: float) -> None:
        """See `RequestSpans.add`. When more spans wait than OpenTelemetry's limit, the newest are dropped."""
        self._spans.add(record, code, now=now)

    async def stop(self, *, seconds: float) -> None:
        """Send what waits, for so long at most; what is left then is lost. Spans are taken no more."""
        # A daemon: a collector that does not answer must not keep the process.
        closing = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, seconds)
