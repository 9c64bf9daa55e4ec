"""64 streams at once through gRPC, with a model that costs nothing; the client runs on the same cores."""

from __future__ import annotations

import asyncio
import statistics
import time

import grpc
from report import Row

from service_sections.raw_client import StreamFigures, request, stream
from service_sections.scripted_worker import NUM_SLOTS, scripted_worker

NUM_TOKENS = 256
PROMPT_TOKENS = 16


def throughput_rows(rounds: int) -> list[Row]:
    """Tokens a second, and the time to the first message when all begin together."""
    with scripted_worker() as address:
        results = asyncio.run(_measure(address, rounds))
    speeds = [sum(figures.num_tokens for figures in streams) / seconds for seconds, streams in results]
    firsts = [
        statistics.median(figures.first_message_seconds for figures in streams) for _, streams in results
    ]
    joined = statistics.median(
        sum(figures.num_tokens for figures in streams) / sum(figures.num_messages for figures in streams)
        for _, streams in results
    )
    speed, first = statistics.median(speeds), statistics.median(firsts)
    return [
        Row(
            name=f"{NUM_SLOTS} streams, scripted model",
            value=speed,
            unit="tokens/s",
            spread=f"{min(speeds):.0f} to {max(speeds):.0f}",
            bar=">= 8000",
            holds=speed >= 8000,
            note=f"{joined:.2f} tokens to a message; client on the same cores",
        ),
        Row(
            name=f"first message of {NUM_SLOTS} streams that begin together, median",
            value=1000 * first,
            unit="ms",
            spread=f"{1000 * min(firsts):.0f} to {1000 * max(firsts):.0f}",
            bar="<= 50",
            holds=first <= 0.05,
        ),
    ]


async def _measure(address: str, rounds: int) -> list[tuple[float, list[StreamFigures]]]:
    """Seconds and streams of each round, after one that is not counted."""
    results = []
    async with grpc.aio.insecure_channel(address) as channel:
        for number in range(rounds + 1):
            prompts = [[100 + number] * (PROMPT_TOKENS - 1) + [i] for i in range(4, 4 + NUM_SLOTS)]
            begun = time.perf_counter()
            streams = await asyncio.gather(
                *(stream(channel, request(prompt, NUM_TOKENS)) for prompt in prompts)
            )
            results.append((time.perf_counter() - begun, streams))
            assert all(figures.num_tokens == NUM_TOKENS for figures in streams)
    return results[1:]
