"""An OpenTelemetry collector of the test's own, on a free loopback port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class SpanCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self._more = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:
        with self._more:
            for resource_spans in request.resource_spans:
                attributes = attributes_of(resource_spans.resource)
                self.services.add(attributes["service.name"])
                for scope in resource_spans.scope_spans:
                    self.spans += scope.spans
            self._more.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, count: int) -> list[Any]:
        """The spans, once there are so many."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.spans) >= count, timeout=60), self.spans
            return list(self.spans)


@contextmanager
def span_collector() -> Iterator[tuple[SpanCollector, str]]:
    """A collector and its URL."""
    collector = SpanCollector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def attributes_of(span: Any) -> dict[str, Any]:
    """Attributes of a span or a resource, as plain values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
