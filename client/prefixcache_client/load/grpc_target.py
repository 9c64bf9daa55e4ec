"""A worker of ours as a target, by gRPC."""

from __future__ import annotations

import time
from typing import Any

import grpc

from prefixcache.v1 import cache_pb2, cache_pb2_grpc, inference_pb2, inference_pb2_grpc
from prefixcache_client.answers import model_info_from_proto
from prefixcache_client.cache_answers import Stats, stats_from_proto
from prefixcache_client.channel import CHANNEL_OPTIONS, checked_address
from prefixcache_client.errors import (
    PermissionDeniedError,
    PrefixCacheClientError,
    UnimplementedError,
    error_from_rpc,
)
from prefixcache_client.load.target import Answered, Refused, require_cached_within, token_gaps
from prefixcache_client.load.tenant_keys import TenantKeys
from prefixcache_client.messages import GenerateOptions, Prompt, generate_request
from prefixcache_client.tls import Tls

_CALLS_PER_CHANNEL = 1000
"""gRPC holds back, unseen, what is more than the server lets run on a connection: 1,024 of ours."""


class _Channel:
    """One connection, and how many calls run on it."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.channel = (
            grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            if tls is None
            else grpc.aio.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)
        )
        self.generate = inference_pb2_grpc.InferenceServiceStub(self.channel).Generate
        self.num_calls = 0


class GrpcTarget:
    """Opens as many connections as its calls need. For one event loop."""

    def __init__(
        self,
        address: str,
        *,
        keys: TenantKeys | None = None,
        tls: Tls | None = None,
        deadline: float | None = None,
    ) -> None:
        """A request without an answer after `deadline` seconds ends with DEADLINE_EXCEEDED.

        Raises ValueError unless the address is HOST:PORT, and OSError when a file of `tls` cannot be read.
        """
        self._address = checked_address(address)
        self._keys = keys or TenantKeys()
        self._tls = tls
        self._deadline = deadline
        self._channels = [_Channel(address, tls)]

    async def describe(self) -> dict[str, str | int | float]:
        stub = inference_pb2_grpc.InferenceServiceStub(self._channels[0].channel)
        request = inference_pb2.GetModelInfoRequest()
        try:
            info = model_info_from_proto(await self._call(stub.GetModelInfo, request))
        except UnimplementedError:
            raise PrefixCacheClientError(
                f"{self._address}: what answers there is no worker of prefixcache; an OpenAI-compatible"
                " server is given as http://HOST:PORT"
            ) from None
        return {
            "kind": "prefixcache",
            "address": self._address,
            "model": info.name,
            "build": info.build,
            "vocabulary_size": info.vocabulary_size,
            "context_length": info.context_length,
            "block_size": info.block_size,
            "num_blocks": info.num_blocks,
            "kv_dtype": info.kv_dtype,
            "device": info.device,
        }

    async def send(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        tenant: str | None,
        public_tokens: int,
        public_messages: int,
    ) -> Answered:
        options: GenerateOptions = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        if public_tokens:
            options["public_tokens"] = public_tokens
        if public_messages:
            options["public_messages"] = public_messages
        request = generate_request(prompt, **options)
        channel = self._free_channel()
        channel.num_calls += 1
        try:
            return await self._answer(
                channel.generate(request, timeout=self._deadline, metadata=self._keys.metadata(tenant))
            )
        except grpc.RpcError as error:
            code = error.code().name
            raise Refused(code, str(error_from_rpc(error, address=self._address))) from None
        finally:
            channel.num_calls -= 1

    async def stats(self) -> Stats | None:
        """Counts of the worker, whose peaks start anew with each reading."""
        stub = cache_pb2_grpc.CacheServiceStub(self._channels[0].channel)
        request = cache_pb2.GetStatsRequest(reset_peaks=True)
        try:
            return stats_from_proto(await self._call(stub.GetStats, request))
        except PermissionDeniedError:
            return None

    async def close(self) -> None:
        for channel in self._channels:
            await channel.channel.close()

    async def _answer(self, call: Any) -> Answered:
        texts: list[str] = []
        token_ids: list[int] = []
        moments: list[float] = []
        usage: inference_pb2.Usage | None = None
        async for response in call:
            delta = response.delta  # empty in the last message
            if delta.token_ids:
                moments.append(time.perf_counter())
                token_ids.extend(delta.token_ids)
            texts.append(delta.text)
            if response.HasField("completion"):
                usage = response.completion.usage
        if usage is None:
            raise Refused("BAD_ANSWER", "the answer ended before it was complete")
        require_cached_within(usage.prompt_tokens, usage.cached_tokens)
        return Answered(
            first_token=moments[0] if moments else None,
            token_gaps=token_gaps(moments),
            text="".join(texts),
            token_ids=tuple(token_ids),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self._deadline, metadata=self._keys.metadata(None))
        except grpc.RpcError as error:
            raise error_from_rpc(error, address=self._address) from None

    def _free_channel(self) -> _Channel:
        for channel in self._channels:
            if channel.num_calls < _CALLS_PER_CHANNEL:
                return channel
        self._channels.append(_Channel(self._address, self._tls))
        return self._channels[-1]
