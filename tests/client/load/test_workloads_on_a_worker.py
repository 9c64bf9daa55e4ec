"""A real worker caches of every workload what the oracle says, request by request."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.sent_sessions import SentPrompt, num_cached_tokens
from support.served_worker import ServedWorker, greedy_request, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import inference_pb2
from prefixcache_client.load.workloads import Agents, Amount, Chat, RecordedTrace, SharedPrefix, Tenants

BLOCK_SIZE = 16
SERVER = {"vocabulary_size": 1000, "context_length": 4096, "block_size": BLOCK_SIZE}
SHORT = Amount.uniform(20, 60)


def a_trace(folder: Path) -> RecordedTrace:
    path = folder / "trace.jsonl"
    ids = [[1, 2, 3], [1, 2, 4], [1], [5, 6], [1, 2, 3, 7]]
    lines = (
        {"timestamp": 0, "hash_ids": i, "input_length": len(i) * 512 - 99, "output_length": 100} for i in ids
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordedTrace(trace=path, length_scale=1 / 16)


async def answered(server: ServedWorker, workload: Any) -> tuple[list[SentPrompt], list[int]]:
    """Send everything in turn; the requests, and how much of each the worker had cached."""
    sent: list[SentPrompt] = []
    cached: list[int] = []
    for number, session in enumerate([*workload.warm_up(), *islice(workload.sessions(), 20)]):
        said: list[int] = []
        for index, turn in enumerate(session.turns):
            prompt = [*said, *turn.prompt] if turn.continues else [*turn.prompt]
            options = inference_pb2.CacheOptions(public_tokens=session.public_tokens)
            request = greedy_request(prompt, turn.max_tokens, cache=options)
            answer = await server.answer(request, tenant=session.tenant)
            said = prompt + answer.token_ids
            sent.append(SentPrompt(number, index, session.tenant, session.public_tokens, prompt, said[:-1]))
            cached.append(answer.completion.usage.cached_tokens)
    return sent, cached


@pytest.mark.parametrize(
    "workload",
    [
        SharedPrefix(
            groups=2,
            prefix_tokens=SHORT,
            common_tokens=20,
            output_tokens=Amount.fixed(3),
            diverging=0.5,
            tenants=3,
        ),
        SharedPrefix(groups=2, prefix_tokens=SHORT, output_tokens=Amount.fixed(3), private=True, tenants=2),
        Chat(system_tokens=40, turns=Amount.fixed(3), output_tokens=Amount.fixed(5), tenants=2),
        Agents(
            agents=2,
            system_tokens=100,
            task_tokens=SHORT,
            tool_turns=Amount.fixed(1),
            output_tokens=Amount.fixed(4),
        ),
        Tenants(prefix_tokens=SHORT, suffix_tokens=Amount.fixed(9), output_tokens=Amount.fixed(2)),
        a_trace,
    ],
    ids=["shared-prefix", "private", "chat", "agents", "tenants", "trace"],
)
async def test_the_worker_caches_what_the_oracle_says(workload: Any, tmp_path: Path) -> None:
    made = workload(tmp_path) if callable(workload) else workload
    async with served(loaded(tiny_decoder()), kv_blocks=2000) as server:
        sent, cached = await answered(server, made.fitted_to(SERVER))

    assert cached == num_cached_tokens(sent, block_size=BLOCK_SIZE)
    assert sum(cached) > 0
