"""`prefixcache top`, and the live requests that the clients tell of."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from support.fake_worker import FakeWorker, stats

from prefixcache.v1 import cache_pb2, diagnosis_pb2
from prefixcache_client import AsyncClient, Client, LiveRequest, RequestState
from prefixcache_client.command_line.top import read
from prefixcache_client.command_line.top_frame import Reading, draw_frame

Run = Callable[..., int]

DECODING = diagnosis_pb2.LiveRequest(
    request_id="one[bold]\x1b",
    tenant="acme",
    state=diagnosis_pb2.REQUEST_STATE_DECODING,
    prompt_tokens=1200,
    cached_tokens=900,
    computed_tokens=1210,
    output_tokens=11,
    num_blocks=76,
    num_shared_blocks=56,
    num_choices=2,
    age_seconds=1.25,
    queue_seconds=0,
    priority=3,
)
WAITING = diagnosis_pb2.LiveRequest(
    request_id="two",
    tenant="acme",
    state=diagnosis_pb2.REQUEST_STATE_WAITING,
    prompt_tokens=10,
    num_choices=1,
)
NODES = [
    cache_pb2.TreeNode(
        id=1, public=True, num_tokens=320, num_blocks=20, num_readers=1, preview="The \nrules"
    ),
    cache_pb2.TreeNode(id=2, parent_id=1, tenant="acme", num_tokens=64, num_blocks=4, num_readers=2),
]


@pytest.fixture
def busy(worker: FakeWorker) -> FakeWorker:
    """A worker with two requests and two nodes."""
    worker.stats.CopyFrom(stats(rows_read=50, rows_unshared=200))
    worker.stats.blocks.live = 64
    worker.stats.blocks.free = 3936
    worker.stats.blocks.live_unshared = 128
    worker.stats.tokens.generated = 40
    worker.stats.evictions.add(cause="other_request", num_blocks=1200)
    worker.stats.evictions.add(cause="ceiling", num_blocks=0)
    worker.stats.latencies.add(name="first_token", count=9, p50_seconds=0.2, p90_seconds=0.4, p99_seconds=1.5)
    worker.live.requests.extend([DECODING, WAITING])
    worker.nodes.extend(NODES)
    return worker


async def test_both_clients_list_requests(busy: FakeWorker) -> None:
    busy.live.num_left_out = 5
    with Client(busy.address) as client:
        live = client.requests()
    async with AsyncClient(busy.address) as client:
        assert await client.requests() == live
    assert live.num_left_out == 5
    decoding, waiting = live.requests
    assert decoding == LiveRequest(
        request_id="one[bold]\x1b",
        tenant="acme",
        state=RequestState.DECODING,
        prompt_tokens=1200,
        cached_tokens=900,
        computed_tokens=1210,
        output_tokens=11,
        num_blocks=76,
        num_shared_blocks=56,
        num_choices=2,
        age_seconds=1.25,
        queue_seconds=0.0,
        priority=3,
    )
    assert (waiting.state, waiting.queue_seconds) == (RequestState.WAITING, None)


def test_every_state_has_a_name() -> None:
    names = {name.removeprefix("REQUEST_STATE_") for name in diagnosis_pb2.RequestState.keys()}  # noqa: SIM118
    assert {state.name for state in RequestState} == names - {"UNSPECIFIED"}


def test_one_frame_shows_pool_requests_latencies_and_prefixes(
    run: Run, busy: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("top", "--once") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"prefixcache {busy.address} fake on"
    assert "hit ratio 90.0 % since the start" in lines
    assert "attention reads 25.0 % of what it would read without sharing" in lines
    assert (
        "4,096 blocks: 64 held by requests (64.0 MiB), 96 cached, 3,936 empty; "
        "without sharing the requests would hold 128" in lines
    )
    assert "left the cache since the start: 1,200 other request" in lines
    assert "requests: 1 running, 1 waiting" in lines
    assert "one[bold]\ufffd x2 acme decoding 1,200 75.0 % 11 76 56 1.25 s" in lines
    assert "first token 200 ms 400 ms 1.50 s" in lines
    first, second = lines[lines.index("hottest prefixes") + 2 :][:2]
    assert (first, second) == ("2 64 4 acme", "1 320 20 public The rules")


def test_who_is_no_admin_sees_its_tenant(
    run: Run, busy: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    busy.is_admin = False
    busy.usages.append(cache_pb2.TenantUsage(tenant="acme", prompt_tokens=8, cached_tokens=2, num_blocks=7))
    assert run("top", "--once", "--tenant", "acme") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "hit ratio 25.0 % since the start" in lines
    assert "blocks 7 of tenant acme's own" in lines
    assert "requests: 1 running, 1 waiting" in lines
    assert not any("empty" in line for line in lines)


def test_rates_are_those_between_two_readings(busy: FakeWorker) -> None:
    with Client(busy.address) as client:
        before = replace(read(client), seconds=100.0)
        busy.stats.tokens.prompt += 10
        busy.stats.tokens.cached += 4
        busy.stats.tokens.generated += 50
        busy.stats.evictions[1].num_blocks += 3
        after = replace(read(client), seconds=102.0)
    lines = drawn(after, before)
    assert "40.0 % in the last 2.00 s" in lines
    assert "generated 25 tokens per second" in lines
    assert "left the cache since the last look: 3 ceiling" in lines
    assert "left the cache since the last look: nothing" in drawn(after, replace(after, seconds=100.0))


def test_a_worker_that_is_not_there_is_named_in_one_sentence(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("top", "--once", "--address", "127.0.0.1:1") == 1
    error = capsys.readouterr().err
    assert error.startswith("prefixcache: ")
    assert "127.0.0.1:1" in error
    assert error.count("\n") == 1


def test_an_interrupt_ends_it_as_it_ends_other_commands(busy: FakeWorker) -> None:
    command = [sys.executable, "-m", "prefixcache_client.command_line.main", "top", "--interval", "0.01"]
    with subprocess.Popen(
        [*command, "--address", busy.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        frames = 0
        while frames < 2:  # the second one says that it goes on
            frames += top.stdout.readline().startswith("prefixcache ")
        top.send_signal(signal.SIGINT)
        _, error = top.communicate(timeout=30)
    assert (top.returncode, error) == (130, "")


def drawn(now: Reading, before: Reading) -> list[str]:
    """The lines of a frame, with single spaces."""
    screen = Console(width=160, markup=False)
    with screen.capture() as capture:
        screen.print(draw_frame(now, before))
    return [" ".join(line.split()) for line in capture.get().splitlines()]
