"""A worker of ours that computes nothing, in a process of its own: what a load on it takes is the load's.

Run as a program it serves until SIGTERM, and prints where like `prefixcache serve`.

Usage: stub_target.py [DELAY_SECONDS]
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from prefixcache.v1 import cache_pb2, inference_pb2

OUTPUT_TOKENS = 4

_OPTIONS = [
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
]
"""A load that comes faster than it is answered waits, instead of being refused by gRPC itself."""


@contextmanager
def stub_target(*, delay_seconds: float = 0.0) -> Iterator[str]:
    """The address of a stub that answers each request so long after it came, with `OUTPUT_TOKENS` tokens."""
    command = [sys.executable, __file__, str(delay_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


class _Handler(grpc.GenericRpcHandler):
    """Takes and gives messages as bytes, made once."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        delta = inference_pb2.Delta(text="stub", token_ids=range(100, 100 + OUTPUT_TOKENS))
        usage = inference_pb2.Usage(
            prompt_tokens=8, cached_tokens=6, computed_tokens=2, completion_tokens=OUTPUT_TOKENS
        )
        completion = inference_pb2.Completion(request_id="stub", usage=usage)
        self._answer = (
            inference_pb2.GenerateResponse(delta=delta).SerializeToString(),
            inference_pb2.GenerateResponse(completion=completion).SerializeToString(),
        )
        self._model_info = inference_pb2.GetModelInfoResponse(
            name="stub", vocabulary_size=32_000, context_length=32_768, block_size=16
        ).SerializeToString()
        self._stats = cache_pb2.GetStatsResponse().SerializeToString()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        match details.method.rpartition("/")[2]:
            case "Generate":
                return grpc.unary_stream_rpc_method_handler(self._generate)
            case "GetModelInfo":
                return grpc.unary_unary_rpc_method_handler(self._get_model_info)
            case "GetStats":
                return grpc.unary_unary_rpc_method_handler(self._get_stats)
            case _:
                return None

    async def _generate(self, request: bytes, context: Any) -> None:
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        for message in self._answer:
            await context.write(message)

    async def _get_model_info(self, request: bytes, context: Any) -> bytes:
        return self._model_info

    async def _get_stats(self, request: bytes, context: Any) -> bytes:
        return self._stats


async def serve(delay_seconds: float) -> None:
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((_Handler(delay_seconds),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await stopping.wait()
    await server.stop(grace=0)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))
