"""`prefixcache bench shared-prefix`: what it sends and what it reports."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_worker import FakeWorker, abort, completion, delta, stats

from prefixcache.v1 import inference_pb2
from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line.shared_prefix import SharedPrefixLoad

SMALL = ("--prefix-tokens", "32", "--suffix-tokens", "4", "--output-tokens", "3", "--requests", "6")


@given(
    prefix=st.integers(1, 40),
    suffix=st.integers(1, 8),
    requests=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    vocabulary_size=st.integers(1, 50_000),
)
def test_prompts_share_exactly_the_prefix_and_fit_the_vocabulary(
    prefix: int, suffix: int, requests: int, seed: int, vocabulary_size: int
) -> None:
    load = SharedPrefixLoad(prefix_tokens=prefix, suffix_tokens=suffix, requests=requests, seed=seed)
    prompts = load.prompts(vocabulary_size)

    assert len(prompts) == requests
    for prompt in prompts:
        assert len(prompt) == prefix + suffix
        assert prompt[:prefix] == load.prefix(vocabulary_size)
        assert all(0 <= token_id < vocabulary_size for token_id in prompt)
    assert prompts == load.prompts(vocabulary_size)


def test_another_seed_makes_another_prefix() -> None:
    assert SharedPrefixLoad(seed=1).prefix(500) != SharedPrefixLoad(seed=2).prefix(500)


def serve(request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Any]:
    """Greedy answers of max_tokens tokens; everything but four tokens is cached."""
    count = request.stop_conditions.max_tokens
    yield delta("x" * count, *range(count), finish=inference_pb2.FINISH_REASON_LENGTH)
    yield completion(
        prompt=len(request.token_ids.ids), cached=len(request.token_ids.ids) - 4, generated=count
    )


def rows_of(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    return {f"{row['name']} {row['note']}": row for row in json.loads(capsys.readouterr().out)}


def test_it_warms_the_prefix_alone_and_then_sends_every_request(worker: FakeWorker) -> None:
    worker.generate = serve

    assert command_line.main(["bench", "shared-prefix", *SMALL, "--address", worker.address]) == 0

    warm, *others = worker.requests
    prefix = list(warm.token_ids.ids)[:32]
    assert (len(warm.token_ids.ids), warm.stop_conditions.max_tokens) == (33, 1)
    assert len(others) == 6
    for request in others:
        assert list(request.token_ids.ids)[:32] == prefix
        assert request.stop_conditions == inference_pb2.StopConditions(max_tokens=3, ignore_eos=True)
        assert request.cache.public_tokens == 32
        assert request.sampling.HasField("temperature")
        assert request.sampling.temperature == 0


def test_tenants_take_turns(worker: FakeWorker) -> None:
    tenants: list[str] = []

    def noting(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        tenants.append(dict(context.invocation_metadata())["x-tenant-id"])
        yield from serve(request, context)

    worker.generate = noting
    command_line.main(["bench", "shared-prefix", *SMALL, "--tenants", "3", "--address", worker.address])

    assert Counter(tenants[1:]) == {"bench-0": 2, "bench-1": 2, "bench-2": 2}


def test_a_single_tenant_is_whoever_the_key_says(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.generate = serve
    monkeypatch.setenv("PREFIXCACHE_API_KEY", "pc_1_2")
    command_line.main(["bench", "shared-prefix", *SMALL, "--tenants", "1", "--address", worker.address])

    assert set(worker.tenants) == {""}
    assert set(worker.authorizations) == {"Bearer pc_1_2"}


def test_no_more_than_the_concurrency_run_at_once(worker: FakeWorker) -> None:
    lock = threading.Lock()
    running = 0
    most = 0

    def counting(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        yield from serve(request, context)
        with lock:
            running -= 1

    worker.generate = counting
    command_line.main(["bench", "shared-prefix", *SMALL, "--concurrency", "1", "--address", worker.address])

    assert most == 1


def test_figures_come_from_the_workers_answers(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.generate = serve
    worker.stats = stats(peak_live=10, peak_live_unshared=40)

    command_line.main(
        ["bench", "shared-prefix", *SMALL, "--seed", "7", "--json", "-", "--address", worker.address]
    )

    rows = rows_of(capsys)
    assert rows["requests answered seed 7"]["value"] == 6
    assert rows["first token p50, worker's clock "]["value"] == 0.5
    assert rows["first token p99, client's clock "]["value"] > 0
    assert rows["output 18 tokens"]["value"] > 0
    assert rows["prompt tokens cached 88.9 % of 216"]["value"] == 6 * 32
    assert rows["KV in use at the peak 25.0 % of that without sharing"]["value"] == 10 * 1024 * 1024
    assert worker.peaks_were_reset


def test_failures_are_counted_by_their_error_and_make_the_exit_code_1(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    arrivals = iter(range(1000))
    lock = threading.Lock()

    def every_third_fails(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with lock:
            arrival = next(arrivals)
        if arrival and arrival % 3 == 0:
            abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        yield from serve(request, context)

    worker.generate = every_third_fails

    command = ["bench", "shared-prefix", *SMALL, "--seed", "7", "--json", "-", "--address", worker.address]
    assert command_line.main(command) == 1

    rows = rows_of(capsys)
    assert rows["failed: ResourceExhaustedError "]["value"] == 2
    assert rows["requests answered seed 7"]["value"] == 4


def test_when_all_fail_the_reason_is_the_answer(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    def only_the_warm_up_works(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if request.stop_conditions.max_tokens != 1:
            abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        yield from serve(request, context)

    worker.generate = only_the_warm_up_works

    assert command_line.main(["bench", "shared-prefix", *SMALL, "--address", worker.address]) == 1
    assert capsys.readouterr().err == "prefixcache: the queue is full\n"
