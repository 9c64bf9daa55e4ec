"""Workloads made of recordings in the shared folder: run by `make test-data`, where that folder exists."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from prefixcache import unpack_tokens
from prefixcache.replay import read_trace
from prefixcache_client.load.workloads import RecordedTrace, Tenants, TextSessions

DATA = Path(os.environ.get("SHARED", Path(__file__).parents[2] / "../shared")).resolve() / "data"
SERVER = {"vocabulary_size": 49_152, "block_size": 16}


def hit_share(prompts: Iterable[Sequence[Sequence[int]]]) -> float:
    """The share of blocks that an endless cache has, each counted by what it and all before it hold."""
    number_of_block: dict[tuple[int, tuple[int, ...]], int] = {}
    num_blocks = num_hits = 0
    for blocks in prompts:
        before = -1
        for block in blocks:
            key, num_before = (before, tuple(block)), len(number_of_block)
            before = number_of_block.setdefault(key, num_before)
            num_hits += len(number_of_block) == num_before
            num_blocks += 1
    return num_hits / num_blocks


def made_prompts(workload: RecordedTrace) -> Iterable[list[int]]:
    for session in workload.sessions():
        yield list(session.turns[0].prompt)  # type: ignore[arg-type]


def test_an_hour_of_conversations_keeps_its_hits_when_it_is_scaled() -> None:
    """Published for this trace: 36.6 % of the blocks."""
    path = DATA / "mooncake-fast25/conversation_trace.jsonl"
    workload = RecordedTrace(trace=path, length_scale=1 / 32).fitted_to(SERVER)

    recorded = hit_share(
        [(an_id,) for an_id in unpack_tokens(request.prompt_ids)] for request in read_trace(path)
    )
    scaled = hit_share(
        [prompt[at : at + 16] for at in range(0, len(prompt), 16)] for prompt in made_prompts(workload)
    )

    assert workload.num_sessions == 12_031
    assert recorded == pytest.approx(0.366, abs=0.0005)
    assert scaled == pytest.approx(recorded, abs=0.002)


def test_coding_sessions_keep_their_hits_when_they_are_scaled() -> None:
    path = DATA / "claude-code-kv"
    workload = RecordedTrace(trace=path, length_scale=1 / 16, limit=200).fitted_to(SERVER)
    requests = list(read_trace(path))[:200]

    recorded = hit_share([(an_id,) for an_id in unpack_tokens(request.prompt_ids)] for request in requests)
    scaled = hit_share(
        [prompt[at : at + 4] for at in range(0, len(prompt), 4)] for prompt in made_prompts(workload)
    )

    assert scaled == pytest.approx(recorded, abs=0.005)


def test_real_tenants_ask_in_their_proportions() -> None:
    """The top one makes 30 % of the requests, the top five 77 %."""
    workload = Tenants(recording=DATA / "servegen-m-small", window_seconds=1, mean_rate=10).fitted_to(SERVER)

    counts = Counter(session.tenant for session in workload.sessions())

    assert sum(counts.values()) == workload.num_sessions == 20_160
    shares = [count / 20_160 for _, count in counts.most_common(5)]
    assert shares[0] == pytest.approx(0.299, abs=0.01)
    assert sum(shares) == pytest.approx(0.77, abs=0.01)


@pytest.mark.parametrize(("folder", "num_sessions"), [("taubench", 24), ("miniswe", 20)])
def test_real_sessions_are_read_whole(folder: str, num_sessions: int) -> None:
    workload = TextSessions(recording=DATA / "agent-sessions" / folder).fitted_to({})

    sessions = list(workload.sessions())

    assert len(sessions) == workload.num_sessions == num_sessions
    assert workload.notes == ()
