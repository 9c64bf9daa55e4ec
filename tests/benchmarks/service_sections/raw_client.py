"""A client that only counts: it leaves messages as the bytes they are, and takes little of the machine."""

from __future__ import annotations

import time
from typing import NamedTuple

import grpc

from prefixcache.v1 import inference_pb2 as pb


class StreamFigures(NamedTuple):
    """What a stream came to, as its client saw it."""

    first_message_seconds: float
    num_messages: int
    num_tokens: int


def request(prompt: list[int], max_tokens: int, **fields: object) -> pb.GenerateRequest:
    """Exactly so many of the likeliest tokens."""
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt),
        sampling=pb.SamplingParams(temperature=0),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens, ignore_eos=True),
        **fields,  # type: ignore[arg-type]
    )


def start(channel: grpc.aio.Channel, message: pb.GenerateRequest) -> grpc.aio.UnaryStreamCall:
    """Begin a call whose answers are bytes."""
    generate = channel.unary_stream(
        "/prefixcache.v1.InferenceService/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
    )
    return generate(message)


async def stream(channel: grpc.aio.Channel, message: pb.GenerateRequest) -> StreamFigures:
    """Read one answer to its end."""
    begun, first_message_seconds, num_messages = time.perf_counter(), 0.0, 0
    last = b""
    call = start(channel, message)
    while (data := await call.read()) is not grpc.aio.EOF:
        if not num_messages:
            first_message_seconds = time.perf_counter() - begun
        num_messages += 1
        last = data
    usage = pb.GenerateResponse.FromString(last).completion.usage
    return StreamFigures(first_message_seconds, num_messages, usage.completion_tokens)
