"""`prefixcache schemes`: which workers it starts, what it sends them, and what it makes of the answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from support.fake_worker import FakeWorker, abort, completion, delta

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line import own_worker
from prefixcache_client.command_line.schemes_load import SchemesLoad

SMALL = ("--prefix", "32", "--suffix", "12", "--output", "5", "--context-length", "128", "--batch", "1", "4")
POOL_TOKENS = 32 * 16


def serve(request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Any]:
    """An answer of max_tokens tokens."""
    count = request.stop_conditions.max_tokens
    yield delta("x" * count, *range(count), finish=inference_pb2.FINISH_REASON_LENGTH)
    yield completion(prompt=len(request.token_ids.ids), cached=0, generated=count)


def counts(*, peak_running: int = 4, preemptions: int = 0) -> cache_pb2.GetStatsResponse:
    """12 blocks of 1 KiB were held, and a quarter of their slots was empty."""
    return cache_pb2.GetStatsResponse(
        blocks=cache_pb2.BlockStats(peak_live=12, peak_used_slots=144, block_size=16, block_bytes=1024),
        requests=cache_pb2.RequestStats(peak_running=peak_running, preemptions=preemptions),
    )


class FakeProcess:
    """Stands in for a worker process: a fake worker in this one."""

    started: list[FakeProcess]

    def __init__(self, *arguments: str, environment: dict[str, str]) -> None:
        assert environment == {"PREFIXCACHE_KEYS": ""}, "it would ask for a key"
        self.arguments = arguments
        self.worker = FakeWorker(serve)
        self.worker.stats = counts()
        info, block_size = self.worker.model_info, int(self.flag("--block-size"))
        info.block_size, info.block_bytes = block_size, 64 * block_size
        info.num_blocks = POOL_TOKENS // block_size
        info.context_length = int(self.flag("--context-length"))

    def flag(self, name: str) -> str:
        return self.arguments[self.arguments.index(name) + 1]

    def __enter__(self) -> Self:
        self.worker.__enter__()
        self.started.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.__exit__()

    def wait_ready(self, *, timeout_seconds: float) -> str:
        return self.worker.address


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    """The worker processes that the command starts."""
    monkeypatch.setattr(FakeProcess, "started", [], raising=False)
    monkeypatch.setattr(own_worker, "WorkerProcess", FakeProcess)
    monkeypatch.setenv("COLUMNS", "160")
    return FakeProcess.started


def compare(*arguments: str) -> int:
    return command_line.main(["schemes", *SMALL, *arguments])


@pytest.mark.parametrize(
    ("scheme", "num_fit"), [("contiguous", 4), ("paged", 10), ("shared", 30)]
)  # as the engine has it in tests/worker/engine/test_schemes.py
def test_how_many_fit(scheme: str, num_fit: int, capsys: pytest.CaptureFixture[str]) -> None:
    compare("--schemes", scheme, "--json", "-")

    (result,) = json.loads(capsys.readouterr().out)["schemes"]
    assert result["num_fit"] == num_fit
    assert (result["num_table_blocks"], result["pool_bytes"]) == (3, 32 * 1024)


@pytest.mark.parametrize(("tokens", "num_blocks"), [(32, 2), (33, 2), (34, 3)])
def test_the_row_of_the_last_token_is_never_written(tokens: int, num_blocks: int) -> None:
    load = SchemesLoad(prefix_tokens=0, suffix_tokens=tokens - 8, output_tokens=8)

    assert load.num_blocks(16) == num_blocks


def test_every_scheme_gets_a_worker_with_the_same_memory(processes: list[FakeProcess]) -> None:
    compare("--model", "m.gguf", "--kv-memory", "3MiB", "--", "--num-threads", "1")

    assert [process.arguments[:4] for process in processes] == [
        ("--scheme", "contiguous", "--block-size", "16"),
        ("--scheme", "paged", "--block-size", "16"),
        ("--scheme", "shared", "--block-size", "16"),
        ("--scheme", "shared", "--kv-dtype", "int8"),
        ("--scheme", "shared", "--kv-dtype", "int4"),
    ]
    for process in processes:
        assert (process.flag("--kv-memory"), process.flag("--kv-headroom")) == ("3MiB", "0")
        assert (process.flag("--context-length"), process.flag("--model")) == ("128", "m.gguf")
        assert (process.flag("--max-running"), process.flag("--max-waiting")) == ("4", "4")
        assert process.arguments[-2:] == ("--num-threads", "1")


def test_block_sizes_are_compared_on_the_default_scheme(
    processes: list[FakeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    compare("--block-sizes", "16", "1", "4")

    assert [(p.flag("--scheme"), p.flag("--block-size")) for p in processes] == [
        ("shared", "1"),
        ("shared", "4"),
        ("shared", "16"),
    ]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "blocks", "of", "1", "48"] in [line[:5] for line in lines]  # a table of 48 blocks
    assert ["blocks", "of", "16", "3"] in [line[:4] for line in lines]


def test_the_same_bursts_go_to_every_worker_and_no_prefix_comes_twice(
    processes: list[FakeProcess],
) -> None:
    compare("--schemes", "paged", "shared", "--rounds", "2")

    sent = [[tuple(r.token_ids.ids) for r in process.worker.requests] for process in processes]
    assert sorted(sent[0]) == sorted(sent[1])
    assert len(sent[0]) == 1 + 2 * (1 + 4)
    assert len(set(sent[0])) == len(sent[0])
    assert len({prompt[:32] for prompt in sent[0]}) == 1 + 2 * 2
    assert {len(prompt) for prompt in sent[0]} == {44}
    for request in processes[0].worker.requests:
        assert request.stop_conditions == inference_pb2.StopConditions(max_tokens=5, ignore_eos=True)
        assert request.sampling.temperature == 0
    compare("--schemes", "paged", "--seed", "1", "--rounds", "1")
    other = {tuple(r.token_ids.ids) for r in processes[2].worker.requests}
    assert not other & set(sent[0])


def test_what_should_fit_is_tried_unless_the_largest_batch_shows_it(
    processes: list[FakeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """4 fit the contiguous worker, of a largest batch of 6; the paged one has room for 10.

    The fake ones say that 4 ran, whatever they are sent.
    """
    command = [*SMALL[:-2], "1", "6", "--rounds", "1", "--schemes", "contiguous", "paged"]
    assert command_line.main(["schemes", *command]) == 0

    assert [len(process.worker.requests) for process in processes] == [1 + 1 + 6, 1 + 1 + 6 + 6]
    tried = processes[1].worker.requests[-6:]
    assert {(len(request.token_ids.ids), request.stop_conditions.max_tokens) for request in tried} == {
        (32 + 1, 12 + 5 - 1)
    }
    assert len({tuple(r.token_ids.ids[:32]) for r in processes[1].worker.requests}) == 4
    out = " ".join(capsys.readouterr().out.split())
    assert "paged: 6 should fit, and 4 were seen to" in out
    assert "contiguous: " not in out


def test_the_table_and_the_json_say_what_the_workers_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare("--schemes", "contiguous", "--rounds", "2", "--json", str(tmp_path / "s.json"))

    result = json.loads((tmp_path / "s.json").read_text())
    assert (result["model"], result["num_rounds"], result["context_length"]) == ("fake", 2, 128)
    assert result["load"] == {"prefix_tokens": 32, "suffix_tokens": 12, "output_tokens": 5}
    (scheme,) = result["schemes"]
    assert [row["batch"] for row in scheme["batches"]] == [1, 4]
    four = scheme["batches"][1]
    assert (four["kv_bytes_per_request"], four["wasted_share"]) == (3 * 1024, 0.25)
    assert four["first_token_seconds"] == [0.5, 0.5]
    assert len(four["tokens_per_second"]) == 2
    assert scheme["first_request_seconds"] == 0.5
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (row,) = [line for line in lines if line[:2] == ["4", "contiguous"]]
    assert row[2:8] == ["4", "4", "3.0", "KiB", "25.0", "%"]
    assert row[-2:] == ["500", "ms"]


def test_requests_that_were_put_back_are_shown_and_show_no_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preemptions = iter(range(100))

    def get_stats(worker: FakeWorker, request: Any, context: Any) -> cache_pb2.GetStatsResponse:
        return counts(preemptions=next(preemptions))

    monkeypatch.setattr(FakeWorker, "GetStats", get_stats)
    compare("--schemes", "paged", "--rounds", "1")

    out = capsys.readouterr().out
    assert "4 -1" in out
    assert "paged: 4 should fit, and 0 were seen to" in " ".join(out.split())


def test_a_request_that_fails_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        abort(context, grpc.StatusCode.INTERNAL, "the worker failed at this request")
        yield

    monkeypatch.setattr(sys.modules[__name__], "serve", fail)

    assert compare("--schemes", "paged") == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "the worker failed at this request" in printed.err


def test_memory_for_less_than_one_request_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def small(worker: FakeWorker, request: Any, context: Any) -> inference_pb2.GetModelInfoResponse:
        return inference_pb2.GetModelInfoResponse(context_length=48, block_size=16, num_blocks=3)

    monkeypatch.setattr(FakeWorker, "GetModelInfo", small)

    assert compare("--schemes", "shared") == 1
    assert capsys.readouterr().err == (
        "prefixcache: shared: its memory holds 48 tokens, and a request has 49; give more --kv-memory\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--output", "85"), "a request has 129 tokens, and --context-length is 128"),
        (("--schemes", "vectors"), "invalid choice: 'vectors'"),
        (("--batch", "0"), "must be an integer from 1 to"),
        (("--picture", "p.jpg"), "must end with .png or .svg, got 'p.jpg'"),
    ],
)
def test_wrong_arguments_start_no_worker(
    arguments: tuple[str, str],
    sentence: str,
    processes: list[FakeProcess],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare(*arguments)

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert processes == []


@pytest.mark.parametrize(("name", "beginning"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_a_picture(tmp_path: Path, name: str, beginning: bytes) -> None:
    arguments = ("--schemes", "paged", "shared", "--block-sizes", "8", "16", "--rounds", "1")
    assert compare(*arguments, "--picture", str(tmp_path / name)) == 0

    assert (tmp_path / name).read_bytes().startswith(beginning)


def test_a_picture_without_matplotlib_is_one_sentence_before_any_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: list[FakeProcess],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert compare("--picture", str(tmp_path / "p.png")) == 1
    assert processes == []
    assert "a picture needs matplotlib" in capsys.readouterr().err
