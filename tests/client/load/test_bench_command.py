"""`prefixcache bench`: what a user types, sees, and gets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, abort, completion, delta
from support.stub_target import stub_target

from prefixcache.v1 import inference_pb2
from prefixcache_client.command_line import main as command_line
from prefixcache_client.load.report.json_file import read_measurement

SMALL = ("--prefix-tokens", "32", "--suffix-tokens", "4", "--output-tokens", "3", "--requests", "6")


def serve(request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Any]:
    """As many tokens as asked for; everything but four tokens is cached."""
    count = request.stop_conditions.max_tokens
    yield delta("x" * count, *range(count), finish=inference_pb2.FINISH_REASON_LENGTH)
    yield completion(
        prompt=len(request.token_ids.ids), cached=len(request.token_ids.ids) - 4, generated=count
    )


def bench(worker: FakeWorker, *argv: str) -> int:
    return command_line.main(["bench", *argv, "--target", worker.address])


def json_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What was printed, all of it."""
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_a_plain_call_needs_no_more_than_a_name(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.generate = serve

    assert bench(worker, "shared-prefix", "--requests", "32") == 0

    warm_up, *measured = worker.requests
    assert len(measured) == 32
    prefix = list(warm_up.token_ids.ids)[:1024]
    assert all(list(request.token_ids.ids)[:1024] == prefix for request in measured)
    assert len({tuple(request.token_ids.ids) for request in measured}) == 32
    shown = capsys.readouterr().out
    assert re.search(r"requests +32 +32 answered", shown)
    assert re.search(r"cached +99\.6 %", shown), "all of 1,056 tokens but 4"


def test_the_json_report_is_all_that_is_printed_and_can_be_read_back(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    worker.generate = serve

    assert bench(worker, "shared-prefix", *SMALL, "--seed", "7", "--json", "-") == 0
    text = capsys.readouterr().out
    (tmp_path / "report.json").write_text(text)
    measurement = read_measurement(str(tmp_path / "report.json"))

    assert len(measurement.results) == measurement.num_planned == 6
    assert {result.cached_tokens for result in measurement.results} == {32}
    assert measurement.workload["seed"] == 7
    assert measurement.arrivals == {"kind": "closed", "concurrency": 16}
    assert measurement.target["address"] == worker.address


def test_the_same_seed_sends_the_same_prompts_and_none_sends_new_ones(worker: FakeWorker) -> None:
    worker.generate = serve
    for seed in (("--seed", "7"), ("--seed", "7"), ()):
        bench(worker, "shared-prefix", *SMALL, *seed)

    prompts = [tuple(request.token_ids.ids) for request in worker.requests]
    first, second, third = prompts[:7], prompts[7:14], prompts[14:]
    assert sorted(first) == sorted(second)
    assert not set(first) & set(third)


def test_every_report_is_written(worker: FakeWorker, tmp_path: Path) -> None:
    worker.generate = serve
    paths = {kind: tmp_path / f"report.{kind}" for kind in ("json", "csv", "html")}
    flags = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]

    assert bench(worker, "shared-prefix", *SMALL, "--rate", "500", *flags, "--slo", "total=30") == 0

    assert len(paths["csv"].read_text().splitlines()) == 1 + 6
    assert paths["html"].read_text().startswith("<!doctype html>")
    assert len(read_measurement(str(paths["json"])).results) == 6


def test_a_report_that_cannot_be_written_costs_no_other(
    worker: FakeWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measurement may have taken hours."""
    worker.generate = serve
    flags = ("--json", "/dev/full", "--csv", str(tmp_path / "r.csv"), "--html", str(tmp_path / "r.html"))

    assert bench(worker, "shared-prefix", *SMALL, *flags, "--force") == 1

    printed = capsys.readouterr()
    assert printed.err == "prefixcache: /dev/full is not written: No space left on device\n"
    assert "end to end" in printed.out
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 1 + 6
    assert (tmp_path / "r.html").read_text().endswith("</html>\n")


def test_a_report_that_exists_is_replaced_only_by_force(
    worker: FakeWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is sent before that is known."""
    worker.generate = serve
    path = tmp_path / "report.csv"
    path.write_text("dear to somebody")

    assert bench(worker, "shared-prefix", *SMALL, "--csv", str(path)) == 1
    sentence = f"prefixcache: {path} exists: name another file, or replace it with --force\n"
    assert capsys.readouterr().err == sentence
    assert path.read_text() == "dear to somebody"
    assert worker.requests == []

    assert bench(worker, "shared-prefix", *SMALL, "--csv", str(path), "--force") == 0
    assert path.read_text().startswith("session,")


@pytest.mark.parametrize(
    ("flags", "arrivals"),
    [
        (("--rate", "200"), {"kind": "constant", "rate": 200.0}),
        (("--rate", "200", "--poisson", "--seed", "3"), {"kind": "poisson", "rate": 200.0, "seed": 3}),
        (("--rate", "200", "--burst", "3"), {"kind": "bursts", "rate": 200.0, "burst": 3}),
        (("--concurrency", "2"), {"kind": "closed", "concurrency": 2}),
    ],
)
def test_arrivals(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], arrivals: dict[str, Any]
) -> None:
    worker.generate = serve

    assert bench(worker, "shared-prefix", *SMALL, *flags, "--json", "-") == 0
    assert json_of(capsys)["measurement"]["arrivals"] == arrivals


def test_a_ramp_tells_the_rates_it_tried(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    worker.generate = serve
    page = tmp_path / "page.html"
    flags = ("--ramp", "20:40:20", "--step-seconds", "0.5")

    assert bench(worker, "shared-prefix", "--prefix-tokens", "8", *flags, "--html", str(page)) == 0

    shown = capsys.readouterr().out
    assert re.search(r"20 /s +5 ", shown)
    assert "the server" in shown, "kept up or not: that depends on the machine"
    assert '<th scope="row">20 /s</th><td>5</td>' in page.read_text()

    assert bench(worker, "shared-prefix", "--prefix-tokens", "8", *flags, "--json", "-") == 0
    ramp = json_of(capsys)["summary"]["ramp"]
    assert ramp["steps"][0] | {"num_kept": 5} == {"rate": 20, "num_offered": 5, "num_kept": 5}
    assert ramp["knee"] in (None, 20, 40)


def test_failures_are_named_after_the_report_and_make_the_exit_code_1(
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

    assert bench(worker, "shared-prefix", *SMALL) == 1

    told = capsys.readouterr()
    assert re.search(r"requests +6 +4 answered", told.out)
    sentence = "prefixcache: 2 of 6 requests failed: 2 x RESOURCE_EXHAUSTED: the queue is full\n"
    assert told.err == sentence


def test_tenants_have_their_keys_from_a_file(worker: FakeWorker, tmp_path: Path) -> None:
    worker.generate = serve
    keys = tmp_path / "keys"
    keys.write_text("# whose, and what they show\nbench-0 key-of-0\n\nbench-1   key-of-1\n")

    assert bench(worker, "shared-prefix", *SMALL, "--tenants", "2", "--key-file", str(keys)) == 0

    assert Counter(filter(None, worker.authorizations[-7:-1])) == {"Bearer key-of-0": 3, "Bearer key-of-1": 3}
    assert set(worker.tenants) == {""}, "a key says whose the request is"


def test_a_key_file_names_its_broken_line_and_shows_no_key(
    worker: FakeWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("shop secret\nanothersecret\n")

    assert bench(worker, "shared-prefix", *SMALL, "--key-file", str(keys)) == 1

    told = capsys.readouterr().err
    assert told.startswith(f"prefixcache: {keys}, line 2: must be TENANT KEY")
    assert "secret" not in told


def test_the_one_key_comes_from_the_environment(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.generate = serve
    monkeypatch.setenv("PREFIXCACHE_API_KEY", "pc_1_2")

    bench(worker, "shared-prefix", *SMALL)

    assert set(worker.authorizations) == {"Bearer pc_1_2"}


@pytest.mark.parametrize("target", ["127.0.0.1:1", "grpc://127.0.0.1:1", "http://127.0.0.1:1"])
def test_a_target_that_nobody_is_at(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["bench", "shared-prefix", "--target", target]) == 1

    told = capsys.readouterr().err
    assert re.fullmatch(r"prefixcache: no (worker|server) answers at .*127\.0\.0\.1:1.*\n", told)


def test_a_grpc_server_of_another_kind(capsys: pytest.CaptureFixture[str]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert command_line.main(["bench", "shared-prefix", "--target", f"127.0.0.1:{port}"]) == 1
    finally:
        server.stop(None).wait()
    assert "what answers there is no worker of prefixcache" in capsys.readouterr().err


def test_a_prompt_that_is_longer_than_the_context(
    worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(worker, "shared-prefix", "--prefix-tokens", "5000") == 1

    told = capsys.readouterr().err
    assert "4,096" in told
    assert worker.requests == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rate", "0"), "--rate: must be a number above 0, got '0'"),
        (("--rate", "-3"), "--rate: "),
        (("--rate", "nan"), "must be a number above 0, got 'nan'"),
        (("--rate", "5", "--concurrency", "3"), "not allowed with argument"),
        (("--poisson",), "--poisson and --burst are shapes of --rate: give it too"),
        (("--rate", "5", "--poisson", "--burst", "2"), "not allowed with argument"),
        (("--step-seconds", "3"), "--step-seconds is of --ramp: give it too"),
        (("--ramp", "5:1:1"), "must begin with the smaller rate, got '5:1:1'"),
        (("--ramp", "5:10"), "must be A:B:STEP, such as 10:100:10, got '5:10'"),
        (("--ramp", "1:2:0"), "must be a number above 0, got '0'"),
        (("--ramp", "1:1e308:1"), "must be at most 100,000 a second, got '1e308'"),
        (("--ramp", "1:100000:1e-308"), "a ramp has at most 10,000 steps, not"),
        (("--ramp", "1:1000:0.01"), "a ramp has at most 10,000 steps, not 99,901"),
        (("--rate", "1e308"), "must be at most 100,000 a second, got '1e308'"),
        (("--groups", "9" * 5000), "--groups: must be an integer, got"),
        (("--groups", "9" * 50), "--groups: must be at most 1e+09, got"),
        (("--output-tokens", "1e300"), "--output-tokens: must be at most 1e+09, got 1e+300"),
        (("--json", "report", "--csv", "./report"), "report would be written twice"),
        (("--concurrency", "20000"), "must be at most 10,000, got 20000"),
        (("--requests", "0"), "--requests: must be an integer from 1"),
        (("--duration", "0"), "--duration: must be a number above 0"),
        (("--slo", "first=1"), "must be of first-token=S,per-token=S,total=S, got 'first=1'"),
        (("--slo", "total=1,total=2"), "must be of first-token=S"),
        (("--slo", "total=0"), "must be a number above 0, got '0'"),
        (("--json", "/no/such/folder/report.json"), "/no/such/folder is no directory"),
        (("--html", "-"), "name a file"),
        (("--model", "m"), "--model is for an http target"),
        (("--target", "http://h:80", "--tls"), "--tls is for a target that begins with https://"),
        (("--target", "h"), "address must be HOST:PORT"),
        (("--target", "http://h/x"), "must be http://HOST:PORT"),
        (("--diverging", "2"), "share from 0 to 1"),
    ],
)
def test_bad_usage_is_2(flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command_line.main(["bench", "shared-prefix", *flags])

    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("num_signals", [1, 2])
def test_ctrl_c_ends_a_load_with_what_there_is_and_a_second_one_at_once(
    num_signals: int, worker: FakeWorker, tmp_path: Path
) -> None:
    """The answers in flight are waited for after the first: there is a report. Not after the second."""
    is_last = threading.Event()
    may_end = threading.Event()

    def slow(request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        if len(worker.requests) > 4:
            is_last.set()
            context.add_callback(may_end.set)
            may_end.wait(30)
        yield from serve(request, context)

    worker.generate = slow
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "prefixcache_client.command_line.main", "bench", "shared-prefix"]
    flags = ("--concurrency", "1", "--target", worker.address, "--json", str(path))
    with subprocess.Popen(
        [*command, *SMALL, "--requests", "99", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "100"},
    ) as process:
        assert is_last.wait(60)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline() == b"waiting for what is in flight; Ctrl-C again ends at once\n"
        if num_signals == 1:
            may_end.set()
        else:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    may_end.set()

    assert (process.returncode, err) == (130, b"")
    if num_signals == 1:
        measurement = read_measurement(str(path))
        assert measurement.was_interrupted
        assert [result.error for result in measurement.results] == [None] * len(measurement.results)
        assert measurement.num_planned == 99
    else:
        assert out == b""
        assert not path.exists()


def test_b138_a_held_rate_against_a_slow_server(run: Callable[..., int], tmp_path: Path) -> None:
    """With real clocks and a real server, of half a second's latency: all are sent, and none waits."""
    path = tmp_path / "report.json"
    with stub_target(delay_seconds=0.5) as address:
        status = run(
            *("bench", "shared-prefix", "--prefix-tokens", "8", "--rate", "100", "--duration", "1"),
            *("--target", address, "--json", str(path)),
        )

    assert status == 0
    measurement = read_measurement(str(path))
    assert [result.planned for result in measurement.results] == [i / 100 for i in range(100)]
    for result in measurement.results:
        assert result.sent >= result.planned
        assert result.first_token_seconds is not None
        assert result.first_token_seconds >= 0.5, "no answer can be earlier than that"
    # Had it waited for answers, it would have taken 50 s.
    assert measurement.seconds < 10
