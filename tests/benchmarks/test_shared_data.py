"""Checks on real data from the shared folder: run by `make test-data`, where that folder exists."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefixcache import unpack_tokens
from prefixcache.replay import Comparison, Trace, read_trace
from prefixcache_client import Client
from prefixcache_client.worker_process import WorkerProcess

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("SHARED", HERE.parents[1] / "../shared")).resolve()
BLOCK_SIZE = 16


def test_the_peer_program_speaks_the_bench_protocol():
    """One small round with a shared prefix and one without, through the real gRPC path."""
    rounds = [
        {"prefix": 64, "suffix": 5, "output": 3, "requests": 3, "seed": 1, "shared": True},
        {"prefix": 20, "suffix": 5, "output": 2, "requests": 2, "seed": 1, "shared": False},
    ]
    program = [sys.executable, HERE / "peer_prefixcache.py", "--bench-dir", SHARED / "bench"]
    result = subprocess.run(
        [*program, "--", "--kv-blocks", "100"],
        input="".join(json.dumps(round_) + "\n" for round_ in rounds),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    ready, *answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert ready == {"ready": True}
    assert [answer["output_tokens"] for answer in answers] == [9, 4]
    assert all(0 < answer["first_token_s"] <= answer["seconds"] for answer in answers)


@pytest.fixture(scope="module")
def sessions() -> list[list[dict[str, str]]]:
    """What real customers first said to a real airline agent, behind that agent's policy."""
    policy = (SHARED / "data/tau2-policies/airline_policy.md").read_text()
    paths = sorted((SHARED / "data/agent-sessions/taubench").glob("*.jsonl"))[:5]
    questions = [json.loads(path.read_text().splitlines()[0])["output"] for path in paths]
    return [
        [{"role": "system", "content": policy}, {"role": "user", "content": question}]
        for question in questions
    ]


def test_real_agent_sessions_share_their_system_prompt(sessions):
    """Every session of another tenant reads the public system prompt, to the last whole block."""
    with (
        WorkerProcess("--trust-tenant-header", "--kv-blocks", "500") as worker,
        Client(worker.wait_ready(timeout_seconds=240), deadline=200) as client,
    ):
        num_system_tokens = len(client.tokenize(sessions[0][:1]))
        assert num_system_tokens > 1000
        for i, turns in enumerate(sessions):
            with Client(client.address, tenant=f"tenant-{i}", deadline=200) as tenant:
                usage = tenant.generate(turns, public_messages=1, temperature=0, max_tokens=4).usage
            assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
            if i > 0:
                assert usage.cached_tokens >= (num_system_tokens - 8) // BLOCK_SIZE * BLOCK_SIZE
        assert sum(node.public for node in client.tree().nodes) >= 1


def test_lru_hits_what_others_have_measured_on_a_recorded_hour():
    """Longest-prefix hits at four sizes, on all conversations of Mooncake's trace."""
    expected = {1_000: 0.045, 3_000: 0.065, 10_000: 0.212, 30_000: 0.326}
    trace = read_trace(SHARED / "data/mooncake-fast25/conversation_trace.jsonl")
    comparison = Comparison(trace, policies=["lru"], capacities=list(expected))

    for request in trace:
        comparison.replay(request)

    rows = comparison.rows()
    assert {row.num_blocks: row.hit_ratio for row in rows} == pytest.approx(expected, abs=0.005)
    assert {(row.num_requests, row.num_prompt_ids) for row in rows} == {(12_031, 288_500)}


def test_every_coding_session_is_read_whole():
    """Requests, their blocks and distinct blocks are as many as the index says, alone and merged."""
    folder = SHARED / "data/claude-code-kv"
    paths = sorted(folder.glob("*.json"))
    with open(folder / "INDEX.csv", newline="") as file:
        index = {Path(row["path"]).name: row for row in csv.DictReader(file)}
    expected = [
        [int(index[path.name][name]) for name in ("requests", "block_accesses", "unique_blocks")]
        for path in paths
    ]
    assert len(expected) == 27
    assert [sizes(read_trace(path)) for path in paths] == expected
    assert sizes(read_trace(folder)) == [sum(column) for column in zip(*expected, strict=True)]


def sizes(trace: Trace) -> list[int]:
    """Requests, the blocks of their prompts, and how many of those are distinct."""
    prompts = [unpack_tokens(request.prompt_ids) for request in trace]
    return [len(prompts), sum(map(len, prompts)), len(set().union(*prompts))]
