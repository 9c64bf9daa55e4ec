"""`prefixcache doctor`: what it prints, its exit status, and one sentence for what cannot be examined."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, abort

from prefixcache.v1 import diagnosis_pb2, diagnosis_pb2_grpc
from prefixcache_client.command_line import doctor
from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line.output import console, write_json
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.fixed_answers import FixedAnswers
from prefixcache_client.doctor.report import Report

HEALTHY = Finding(step=1, name="slope", verdict=Verdict.HEALTHY, sentence="It is flat.", evidence={"rows": 9})
UNKNOWN = Finding(step=5, name="usage", verdict=Verdict.UNKNOWN, sentence="There is no load.", evidence={})
FAULT = Finding(
    step=4,
    name="copies",
    verdict=Verdict.FAULT,
    sentence="Copies grow.",
    evidence={"growth_bytes_per_row": 35533.25, "num_rows": 4096},
    pitfall="growing-copy",
    advice="Look in the trace.",
)
PATH = Finding(
    step=6,
    name="bottleneck",
    verdict=Verdict.HEALTHY,
    sentence="Weights.",
    evidence={"overall": "40 tokens/s"},
)
REPORT = Report(
    model="m\x1b[31m",
    build="b",
    settings={},
    machine={"cpu": "a processor", "attention": "native"},
    findings=[HEALTHY, UNKNOWN, PATH],
    answers=FixedAnswers(texts={"a": "one"}, first_token_seconds=[0.5], token_seconds=[0.1]),
    is_alone=True,
)
ILL = replace(REPORT, findings=[HEALTHY, FAULT], is_alone=False)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with FakeWorker() as worker:
        yield worker


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch, worker: FakeWorker) -> list[dict[str, Any]]:
    """What the examination was asked for; it finds `copies` wrong when step 4 is among the steps."""
    asked: list[dict[str, Any]] = []

    async def examine(client: Any, **options: Any) -> tuple[Report, bytes]:
        asked.append({"address": client.address, **options})
        options["on_step"]("step 1: slope")
        return (ILL if 4 in options["steps"] else REPORT), b"trace"

    monkeypatch.setattr(doctor, "examine", examine)
    return asked


def test_a_fault_is_shown_with_figures_advice_and_page(examined, worker, capsys) -> None:
    assert command_line.main(["doctor", "--target", worker.address]) == 3

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("m\ufffd[31m, a processor, native")
    shown = [line.strip() for line in lines]
    place = next(i for i, line in enumerate(shown) if line.startswith("fault"))
    assert shown[place].split() == ["fault", "copies", "Copies", "grow."]
    assert shown[place + 1 : place + 5] == [
        "growth_bytes_per_row: 35,533",
        "num_rows: 4,096",
        "-> Look in the trace.",
        "-> docs/pitfalls/growing-copy.md",
    ]
    assert "Found: growing-copy." in shown
    assert shown[-1].startswith("Others used the worker meanwhile")
    assert "rows: 9" not in "\n".join(lines), "figures of what is healthy are in the JSON"
    assert examined == [
        {
            "address": worker.address,
            "steps": {1, 2, 3, 4, 5, 6},
            "quick": False,
            "with_trace": False,
            "on_step": examined[0]["on_step"],
        }
    ]


def test_nothing_wrong_is_status_0(examined, worker, capsys) -> None:
    assert command_line.main(["doctor", "--target", worker.address, "--skip", "4", "--quick"]) == 0

    out = capsys.readouterr().out
    assert "Healthy: 3 checks, nothing wrong, 1 could not be decided." in out
    assert "overall: 40 tokens/s" in out
    assert examined[0]["quick"] is True


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--only", "1", "slope", "settings"], {1, 5}),
        (["--skip", "copies", "2", "6"], {1, 3, 5}),
    ],
)
def test_steps_are_chosen_by_number_or_name(examined, worker, arguments, steps) -> None:
    command_line.main(["doctor", "--target", worker.address, *arguments])

    assert examined[0]["steps"] == steps


def test_the_json_and_the_trace_are_written(examined, worker, tmp_path: Path, capsys) -> None:
    trace, report = tmp_path / "trace.json.gz", tmp_path / "report.json"

    command_line.main(["doctor", "--target", worker.address, "--trace", str(trace), "--json", str(report)])

    assert examined[0]["with_trace"] is True
    assert trace.read_bytes() == b"trace"
    written = json.loads(report.read_text())
    assert written["findings"][1]["verdict"] == "fault"
    assert written["findings"][1]["pitfall"] == "growing-copy"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--target", "127.0.0.1:1", "--model", "m.gguf"],
        ["--target", "127.0.0.1:1", "--worker", "--kv-dtype", "int8"],
        ["--skip", *"123456"],
        ["--only", "7"],
        ["--only", "1", "--skip", "2"],
        ["--target", "nowhere"],
        ["--tls-ca", "ca.pem"],
        ["--only", "3", "--trace", "trace.json.gz"],
    ],
)
def test_bad_usage_is_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line.main(["doctor", *arguments])
    assert caught.value.code == 2


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("prefixcache: ")
    return line


def test_nobody_at_the_target(capsys) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert command_line.main(["doctor", "--target", address]) == 1
    assert "no worker answers" in sentence(capsys)


def test_a_target_that_is_not_ours(capsys) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        assert command_line.main(["doctor", "--target", address]) == 1
    finally:
        server.stop(None).wait()
    assert "no prefixcache worker, or an older one" in sentence(capsys)


class RefusingDiagnosis(diagnosis_pb2_grpc.DiagnosisServiceServicer):
    """Knows no admin."""

    def GetSettings(
        self, request: diagnosis_pb2.GetSettingsRequest, context: grpc.ServicerContext
    ) -> diagnosis_pb2.GetSettingsResponse:
        abort(context, grpc.StatusCode.PERMISSION_DENIED, "GetSettings is for admins")
        raise AssertionError("abort does not return")


def test_a_key_that_is_no_admins(capsys) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    diagnosis_pb2_grpc.add_DiagnosisServiceServicer_to_server(RefusingDiagnosis(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        assert command_line.main(["doctor", "--target", address]) == 1
    finally:
        server.stop(None).wait()
    assert "needs the key of an admin" in sentence(capsys)


def test_verify_shows_what_became_of_a_fault(tmp_path: Path, capsys) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    write_json(ILL, str(before))
    write_json(replace(REPORT, answers=replace(REPORT.answers, token_seconds=[0.05])), str(after))

    assert command_line.main(["doctor", "verify", str(before), str(after)]) == 0

    out = capsys.readouterr().out
    assert "1 of 1 fixed prompts are answered alike." in out
    assert "No longer found: growing-copy." in out
    [row] = [line.split() for line in out.splitlines() if "each further token" in line]
    assert row[3:] == ["100", "ms", "50", "ms", "2.00", "not", "told", "apart"]


def test_verify_fails_when_texts_differ(tmp_path: Path, capsys) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    write_json(REPORT, str(before))
    write_json(replace(REPORT, answers=replace(REPORT.answers, texts={"a": "two"})), str(after))

    assert command_line.main(["doctor", "verify", str(before), str(after), "--json", "-"]) == 3

    assert json.loads(capsys.readouterr().out)["other_texts"] == [["a", "one", "two"]]


def test_verify_of_what_is_no_report(tmp_path: Path, capsys) -> None:
    (tmp_path / "other.json").write_text("{}")

    assert command_line.main(["doctor", "verify", str(tmp_path / "other.json"), "nowhere.json"]) == 1
    assert "is no report of prefixcache doctor" in sentence(capsys)


def test_texts_of_a_report_cannot_steer_the_terminal(capsys) -> None:
    console().print(doctor.report_view(replace(REPORT, findings=[replace(FAULT, sentence="\x1b[2J")])))

    assert "\x1b" not in capsys.readouterr().out
