"""Clients that ask for much and read too slowly, or no more, at either door."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

import grpc
from support.fault_storm import OWN_CONNECTION, PATIENCE_SECONDS, Tally, bearer
from support.http_storm import CHAT, read_stream
from support.raw_http import post_body, raw_http

from prefixcache.v1 import inference_pb2, inference_pb2_grpc

NUM_CHOICES = 4
ANSWER_TOKENS = 200
NUM_LOGPROBS = 20
"""So that an answer is larger than what gRPC, HTTP and the system take of it without a reader."""
STALL_SECONDS = 0.2
"""What the worker should be set to."""
REST_SECONDS = 7 * STALL_SECONDS
"""How long a reader reads nothing."""


class SlowReaders:
    """Answers that are left unread: each ends by SLOW_READER, or as a whole, or because its client leaves."""

    def __init__(
        self,
        address: str,
        http_address: str,
        *,
        seed: int,
        model_name: str,
        tally: Tally,
        keys: Sequence[str | None] = (None,),
    ) -> None:
        self._address = address
        self._http_address = http_address
        self._random = random.Random(seed)
        self._model_name = model_name
        self._tally = tally
        self._keys = keys

    async def attack(self) -> None:
        """Make one call, and note how it ended."""
        door = self._random.choice(["grpc", "http"])
        async with asyncio.timeout(PATIENCE_SECONDS):
            ending = await (self._over_grpc() if door == "grpc" else self._over_http())
        self._tally.endings[f"{door} slow reader: {ending}"] += 1

    async def _over_grpc(self) -> str:
        # gRPC would take megabytes ahead of a reader that it finds fast.
        options = [*OWN_CONNECTION, ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(self._address, options) as channel:
            call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
                inference_pb2.GenerateRequest(
                    token_ids=inference_pb2.TokenIds(ids=[3, *self._random.choices(range(3, 250), k=20)]),
                    sampling=inference_pb2.SamplingParams(temperature=0),
                    stop_conditions=inference_pb2.StopConditions(max_tokens=ANSWER_TOKENS, ignore_eos=True),
                    logprobs=NUM_LOGPROBS,
                    n=NUM_CHOICES,
                ),
                timeout=PATIENCE_SECONDS,
                metadata=bearer(self._random.choice(self._keys)),
            )
            try:
                await call.read()
                if call.done():
                    return self._reason(await call.code(), await call.details())
                await asyncio.sleep(REST_SECONDS)
                if self._random.random() < 0.3:
                    return "left"
                return await self._read_on(call)
            except grpc.aio.AioRpcError as error:
                return self._reason(error.code(), error.details())

    async def _read_on(self, call: grpc.aio.UnaryStreamCall) -> str:
        num_completions = 0
        while (response := await call.read()) is not grpc.aio.EOF:
            assert not num_completions, "a message after the completion"
            num_completions += response.HasField("completion")
        if await call.code() is not grpc.StatusCode.OK:
            return self._reason(await call.code(), await call.details())
        assert num_completions == 1, "a stream without its completion"
        return "answered"

    def _reason(self, code: grpc.StatusCode, details: str) -> str:
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, (code, details)
        return "SLOW_READER" if "are unread" in details else "refused"

    async def _over_http(self) -> str:
        fields = {
            "model": self._model_name,
            "messages": [{"role": "user", "content": "".join(self._random.choices("abcxyz", k=20))}],
            "temperature": 0,
            "ignore_eos": True,
            "max_tokens": ANSWER_TOKENS,
            "logprobs": True,
            "top_logprobs": NUM_LOGPROBS,
            "n": NUM_CHOICES,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with raw_http(self._http_address, receive_buffer_bytes=4096) as http:
            http.send(CHAT, post_body(fields), key=self._random.choice(self._keys))
            await asyncio.sleep(REST_SECONDS)
            if self._random.random() < 0.3:
                return "left"
            answer = await http.answer()
        if answer.status != 200:
            assert answer.status == 429, answer
            return "refused"
        if answer.body.endswith(b"data: [DONE]\n\n"):
            _, usage = read_stream(answer)
            assert usage["completion_tokens"] == NUM_CHOICES * ANSWER_TOKENS
            return "answered"
        *_, last, rest = answer.body.split(b"\n\n")
        assert not rest
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "slow_reader", last
        return "SLOW_READER"
