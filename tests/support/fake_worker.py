"""A worker without a model: speaks the real protocol on a real port and does what a test tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Self

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from prefixcache.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    diagnosis_pb2,
    diagnosis_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

Generate = Callable[
    [inference_pb2.GenerateRequest, grpc.ServicerContext], Iterator[inference_pb2.GenerateResponse]
]


def delta(
    text: str, *token_ids: int, index: int = 0, finish: int = inference_pb2.FINISH_REASON_UNSPECIFIED
) -> inference_pb2.GenerateResponse:
    """One delta."""
    message = inference_pb2.Delta(index=index, text=text, token_ids=token_ids, finish_reason=finish)
    return inference_pb2.GenerateResponse(delta=message)


def completion(
    request_id: str = "r1", *, prompt: int = 10, cached: int = 4, generated: int = 2
) -> inference_pb2.GenerateResponse:
    """The end of an answer: queued 0.25 s, first token at 0.5 s, last at 1 s."""
    usage = inference_pb2.Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=max(prompt - cached, 0),  # a worker that lies has more cached
        completion_tokens=generated,
    )
    timing = inference_pb2.Timing(queue_seconds=0.25, first_token_seconds=0.5, total_seconds=1.0)
    message = inference_pb2.Completion(request_id=request_id, usage=usage, timing=timing)
    return inference_pb2.GenerateResponse(completion=message)


def two_words(
    request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
) -> Iterator[inference_pb2.GenerateResponse]:
    """Answers every choice with "Hello world"."""
    for index in range(request.n or 1):
        yield delta("Hello", 5, index=index)
        yield delta(" world", 6, index=index, finish=inference_pb2.FINISH_REASON_STOP)
    yield completion(request.request_id or "r1")


def abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str, *details: Message) -> None:
    """End the call with a status and its rich details. Does not return."""
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)


class FakeWorker(
    inference_pb2_grpc.InferenceServiceServicer,
    cache_pb2_grpc.CacheServiceServicer,
    diagnosis_pb2_grpc.DiagnosisServiceServicer,
):
    """Records every request; `generate` decides the answers. A `with` block starts and stops it."""

    def __init__(self, generate: Generate = two_words) -> None:
        self.generate = generate
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.tenants: list[str] = []
        """The tenant that every call names, in order; empty if none."""
        self.authorizations: list[str] = []
        """What every call shows, in the same way."""
        self.cancelled = threading.Event()
        """Set once a generate call has ended before its answer was complete."""
        self.deadlines_seconds: list[float | None] = []
        self.model_info = inference_pb2.GetModelInfoResponse(
            name="fake", vocabulary_size=500, context_length=4096, block_size=16, eos_token_ids=[2, 7]
        )
        self.stats = cache_pb2.GetStatsResponse()
        self.peaks_were_reset = False
        self.is_admin = True
        """Whether callers may have the figures of all tenants."""
        self.live = diagnosis_pb2.ListRequestsResponse()
        self.nodes: list[cache_pb2.TreeNode] = []
        self.explanation = cache_pb2.ExplainResponse()
        self.explain_requests: list[cache_pb2.ExplainRequest] = []
        self.events: list[cache_pb2.WatchEventsResponse] = []
        self.num_resets = 0
        self.live_ids: set[str] = set()
        self.orders: list[cache_pb2.CreatePrefixRequest] = []
        self.prefixes: list[cache_pb2.Prefix] = []
        self.usages: list[cache_pb2.TenantUsage] = []
        self.health = HealthServicer()

    def __enter__(self) -> Self:
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
        self._server = grpc.server(futures.ThreadPoolExecutor(32), options=options)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
        cache_pb2_grpc.add_CacheServiceServicer_to_server(self, self._server)
        diagnosis_pb2_grpc.add_DiagnosisServiceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=5).wait()

    def stop_serving(self) -> None:
        """Report NOT_SERVING from now on."""
        self.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """Whatever the test says."""
        self._note(context)
        self.requests.append(request)
        ended = threading.Event()
        context.add_callback(lambda: ended.is_set() or self.cancelled.set())
        yield from self.generate(request, context)
        ended.set()

    def Abort(
        self, request: inference_pb2.AbortRequest, context: grpc.ServicerContext
    ) -> inference_pb2.AbortResponse:
        """Whether the id is one of `live_ids`."""
        self._note(context)
        return inference_pb2.AbortResponse(was_live=request.request_id in self.live_ids)

    def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        """One token per character, its code point; of a chat, the contents one after the other."""
        self._note(context)
        text = request.text or "".join(message.content for message in request.chat.messages)
        return inference_pb2.TokenizeResponse(token_ids=map(ord, text))

    def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.DetokenizeResponse:
        """The inverse of Tokenize; ids below 32 are the special ones."""
        self._note(context)
        kept = [i for i in request.token_ids if i >= 32 or not request.skip_special_tokens]
        return inference_pb2.DetokenizeResponse(text="".join(map(chr, kept)))

    def GetModelInfo(
        self, request: inference_pb2.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> inference_pb2.GetModelInfoResponse:
        """What `model_info` holds."""
        self._note(context)
        return self.model_info

    def GetStats(
        self, request: cache_pb2.GetStatsRequest, context: grpc.ServicerContext
    ) -> cache_pb2.GetStatsResponse:
        """What `stats` holds."""
        self._note(context)
        if not self.is_admin:
            abort(context, grpc.StatusCode.PERMISSION_DENIED, "GetStats needs the role admin")
        self.peaks_were_reset |= request.reset_peaks
        return self.stats

    def DumpTree(
        self, request: cache_pb2.DumpTreeRequest, context: grpc.ServicerContext
    ) -> cache_pb2.DumpTreeResponse:
        """The first `max_depth` of `nodes`, or all for 0."""
        self._note(context)
        return cache_pb2.DumpTreeResponse(nodes=self.nodes[: request.max_depth or None])

    def Snapshot(
        self, request: cache_pb2.SnapshotRequest, context: grpc.ServicerContext
    ) -> cache_pb2.SnapshotResponse:
        """Three blocks of 64 bytes in a quarter of a second."""
        self._note(context)
        return cache_pb2.SnapshotResponse(num_blocks=3, num_bytes=192, seconds=0.25)

    def Restore(
        self, request: cache_pb2.RestoreRequest, context: grpc.ServicerContext
    ) -> cache_pb2.RestoreResponse:
        """What a snapshot has given, unless the cache is not empty."""
        self._note(context)
        if self.nodes:
            abort(context, grpc.StatusCode.FAILED_PRECONDITION, "the cache is not empty")
        return cache_pb2.RestoreResponse(num_blocks=3)

    def Explain(
        self, request: cache_pb2.ExplainRequest, context: grpc.ServicerContext
    ) -> cache_pb2.ExplainResponse:
        """What `explanation` holds."""
        self._note(context)
        self.explain_requests.append(request)
        return self.explanation

    def WatchEvents(
        self, request: cache_pb2.WatchEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[cache_pb2.WatchEventsResponse]:
        """Those of `events` from the number on, or all of them; OUT_OF_RANGE for a later number."""
        self._note(context)
        number = request.from_sequence_number
        if self.events and number > self.events[-1].sequence_number:
            abort(context, grpc.StatusCode.OUT_OF_RANGE, f"event {number} is not there")
        yield from (event for event in self.events if event.sequence_number >= number)

    def Reset(
        self, request: cache_pb2.ResetRequest, context: grpc.ServicerContext
    ) -> cache_pb2.ResetResponse:
        """Counted."""
        self._note(context)
        self.num_resets += 1
        return cache_pb2.ResetResponse()

    def CreatePrefix(
        self, request: cache_pb2.CreatePrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.CreatePrefixResponse:
        """Keeps what is asked for, numbered from 1, and says that it cost ten tokens."""
        self._note(context)
        self.orders.append(request)
        self.prefixes.append(
            cache_pb2.Prefix(
                prefix_id=f"p{len(self.orders)}",
                tenant=self.tenants[-1],
                label=request.label,
                num_tokens=10,
                num_kept_tokens=8,
                num_blocks=2,
                public=request.public,
                ttl_seconds=request.ttl_seconds,
                seconds_left=request.ttl_seconds,
            )
        )
        usage = inference_pb2.Usage(prompt_tokens=10, computed_tokens=10, written_tokens=8)
        return cache_pb2.CreatePrefixResponse(prefix=self.prefixes[-1], usage=usage)

    def GetPrefix(
        self, request: cache_pb2.GetPrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.GetPrefixResponse:
        """The prefix, or NOT_FOUND."""
        self._note(context)
        return cache_pb2.GetPrefixResponse(prefix=self._prefix(request.prefix_id, context))

    def ListPrefixes(
        self, request: cache_pb2.ListPrefixesRequest, context: grpc.ServicerContext
    ) -> cache_pb2.ListPrefixesResponse:
        """Pages of two, unless the request says otherwise."""
        self._note(context)
        start = int(request.page_token or 0)
        end = start + (request.page_size or 2)
        return cache_pb2.ListPrefixesResponse(
            prefixes=self.prefixes[start:end],
            next_page_token=str(end) if end < len(self.prefixes) else "",
        )

    def UpdatePrefix(
        self, request: cache_pb2.UpdatePrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.UpdatePrefixResponse:
        """Changes what is given."""
        self._note(context)
        prefix = self._prefix(request.prefix_id, context)
        if request.HasField("label"):
            prefix.label = request.label
        if request.HasField("ttl_seconds"):
            prefix.ttl_seconds = prefix.seconds_left = request.ttl_seconds
        return cache_pb2.UpdatePrefixResponse(prefix=prefix)

    def DeletePrefix(
        self, request: cache_pb2.DeletePrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.DeletePrefixResponse:
        """Forgets it."""
        self._note(context)
        self.prefixes.remove(self._prefix(request.prefix_id, context))
        return cache_pb2.DeletePrefixResponse()

    def GetUsage(
        self, request: cache_pb2.GetUsageRequest, context: grpc.ServicerContext
    ) -> cache_pb2.GetUsageResponse:
        """What `usages` holds of the tenants asked for."""
        self._note(context)
        name = request.tenant or self.tenants[-1]
        return cache_pb2.GetUsageResponse(
            tenants=[usage for usage in self.usages if request.all_tenants or usage.tenant == name]
        )

    def ListRequests(
        self, request: diagnosis_pb2.ListRequestsRequest, context: grpc.ServicerContext
    ) -> diagnosis_pb2.ListRequestsResponse:
        """What `live` holds."""
        self._note(context)
        return self.live

    def _prefix(self, prefix_id: str, context: grpc.ServicerContext) -> cache_pb2.Prefix:
        for prefix in self.prefixes:
            if prefix.prefix_id == prefix_id:
                return prefix
        context.abort(grpc.StatusCode.NOT_FOUND, f"prefix_id: there is no prefix {prefix_id!r}")
        raise AssertionError("abort does not return")

    def _note(self, context: grpc.ServicerContext) -> None:
        metadata = dict(context.invocation_metadata())
        self.tenants.append(metadata.get("x-tenant-id", ""))
        self.authorizations.append(metadata.get("authorization", ""))
        self.deadlines_seconds.append(context.time_remaining())


def stats(
    *, peak_live: int = 150, peak_live_unshared: int = 2000, rows_read: int = 0, rows_unshared: int = 0
) -> cache_pb2.GetStatsResponse:
    """Counts of a pool of 4,096 blocks of 1 MiB."""
    return cache_pb2.GetStatsResponse(
        blocks=cache_pb2.BlockStats(
            total=4096,
            free=4000,
            idle=96,
            peak_live=peak_live,
            peak_live_unshared=peak_live_unshared,
            copied=3,
            block_bytes=1024 * 1024,
            block_size=16,
            peak_used_slots=peak_live * 12,
        ),
        tokens=cache_pb2.TokenStats(
            prompt=1000, cached=900, computed=100, kv_rows_read=rows_read, kv_rows_unshared=rows_unshared
        ),
        requests=cache_pb2.RequestStats(finished=17, steps=40),
    )
