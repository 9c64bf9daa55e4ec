"""`prefixcache replay`: what it prints, writes and returns."""

from __future__ import annotations

import csv
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from prefixcache.replay import Comparison, TraceRequest
from prefixcache_client.command_line import main as command_line

LINE = {"t": 0, "block_size": 16, "output_length": 1}
REQUESTS = (
    ("acme", [1, 2, 3, 4]),
    ("other", [1, 2]),
    ("acme", [1, 2, 3, 4]),
    ("other", [1, 9]),
)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    lines = [LINE | {"tenant": tenant, "hash_ids": ids} for tenant, ids in REQUESTS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def cells(text: str) -> list[list[str]]:
    """The lines printed, cut where a table has its bars."""
    return [
        [cell.strip() for cell in line.strip(" │┃").replace("┃", "│").split("│")]
        for line in text.splitlines()
    ]


def replay(*argv: str) -> int:
    return command_line.main(["replay", *argv])


def test_the_table_has_all_tenants_and_each_one(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(trace, "--policies", "lru", "--capacities", "10,4", "--optimum") == 0

    printed = capsys.readouterr().out
    assert printed.startswith("trace.jsonl: 4 requests, hits in % of all prompt blocks\n")
    lines = cells(printed)
    assert lines.count(["blocks", "4", "10"]) == 3
    lru = [line[1:] for line in lines if line[0] == "lru"]
    assert lru == [["16.7 (0.50)", "41.7 (1.00)"], ["25.0", "50.0"], ["0.0", "25.0"]]
    assert [line for line in lines if line[0] == "optimum"] == [["optimum", "33.3", "41.7"]]
    assert [line[0] for line in lines if line[0] in ("acme", "other")] == ["acme", "other"]


def test_json_has_every_count(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    replay(trace, "--policies", "lru,arc,lru", "--capacities", "10", "--floor", "acme=4", "--json", "-")

    result = json.loads(capsys.readouterr().out)
    rows = result.pop("rows")
    assert result == {
        "trace": "trace.jsonl",
        "block_size": 16,
        "id_unit": "block",
        "num_requests": 4,
        "num_trace_requests": 4,
        "tenants": ["acme", "other"],
        "quotas": {"acme": {"floor_blocks": 4, "ceiling_blocks": None}},
    }
    assert [(row["policy"], row["tenant"]) for row in rows] == [
        (policy, tenant) for policy in ("lru", "arc") for tenant in (None, "acme", "other")
    ]
    assert rows[1] == {
        "policy": "lru",
        "num_blocks": 10,
        "tenant": "acme",
        "num_requests": 2,
        "num_refused": 0,
        "num_prompt_ids": 8,
        "num_hit_ids": 4,
        "hit_ratio": 0.5,
        "share_of_optimum": None,
        "num_evicted_blocks": 0,
    }


def test_csv_has_the_same_rows(trace: str, tmp_path: Path) -> None:
    replay(trace, "--optimum", "--json", str(tmp_path / "r.json"), "--csv", str(tmp_path / "r.csv"))

    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    with open(tmp_path / "r.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert written == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]


@pytest.mark.parametrize(("name", "beginning"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_a_picture(trace: str, tmp_path: Path, name: str, beginning: bytes) -> None:
    assert replay(trace, "--optimum", "--capacities", "3,4,9", "--picture", str(tmp_path / name)) == 0

    assert (tmp_path / name).read_bytes().startswith(beginning)


def test_a_picture_without_matplotlib_is_one_sentence_before_any_work(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert replay(trace, "--picture", str(tmp_path / "p.png")) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "prefixcache: a picture needs matplotlib: install it with pip install 'prefixcache[plot]'\n"
    )


def test_what_the_figures_do_not_tell_is_said_below(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    quotas = ("--ceiling", "acme=3", "--floor", "acme=1", "--floor", "nobody=2")
    replay(trace, "--policies", "lru", "--capacities", "8", *quotas)

    assert capsys.readouterr().out.splitlines()[-3:] == [
        "8 blocks: 2 requests found no room and were refused",
        "acme: floor 1 blocks, ceiling 3",
        "nobody: floor 2 blocks, ceiling none; but none of the requests is its",
    ]


def test_a_limit_stops_early_and_says_so(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    replay(trace, "--limit", "2", "--capacities", "8")

    assert capsys.readouterr().out.startswith("trace.jsonl: the first 2 of 4 requests")


def test_broken_lines_are_left_out_when_asked_for_and_named(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(trace, "a") as file:
        file.write('{"t": 0, "tenant"\n')
    assert replay(trace, "--policies", "lru", "--capacities", "8") == 1
    assert capsys.readouterr().err.startswith(f"prefixcache: {trace}:5: damaged JSON")

    assert replay(trace, "--policies", "lru", "--capacities", "8", "--skip-broken") == 0

    printed = capsys.readouterr()
    assert printed.out.startswith("trace.jsonl: 4 requests")
    assert printed.err.startswith(f"prefixcache: left out: {trace}:5: damaged JSON at column 18")
    assert printed.err.count("\n") == 1


def test_ctrl_c_shows_what_there_is_and_is_130(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request under way is finished in every cache, so that all have seen the same."""
    replay_request = Comparison.replay
    seen: list[TraceRequest] = []

    def interrupted(self: Comparison, request: TraceRequest) -> None:
        seen.append(request)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)
        replay_request(self, request)

    monkeypatch.setattr(Comparison, "replay", interrupted)
    before = signal.getsignal(signal.SIGINT)

    assert replay(trace, "--capacities", "8", "--json", "-") == 130

    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["num_requests"] == len(seen) == 3
    assert {row["num_requests"] for row in result["rows"] if row["tenant"] is None} == {3}
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stuck(self: Comparison, request: TraceRequest) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Comparison, "replay", stuck)

    assert replay(trace) == 130

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "[Errno 2] No such file or directory: '{path}'"),
        ('{"t": 1}', "{path}:1: no trace begins like this; "),
        (json.dumps(LINE | {"tenant": "acme", "token_ids": []}), "{path}:1: 'token_ids' is empty; "),
        (
            json.dumps(LINE | {"block_size": 3, "tenant": "a", "token_ids": [1]}),
            "block_size is 3; give a power",
        ),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_1_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_text(content)

    assert replay(str(path)) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("prefixcache: " + message.format(path=path))
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("quota", [("--floor", "acme=99"), ("--ceiling", "acme=0")])
def test_an_impossible_quota_is_1_and_one_sentence(
    trace: str, capsys: pytest.CaptureFixture[str], quota: tuple[str, str]
) -> None:
    assert replay(trace, "--capacities", "8", *quota) == 1

    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "required: TRACE"),
        (["t", "--policies", "lru,mru"], "'mru' is no policy"),
        (["t", "--capacities", "100,0"], "must be an integer from 1"),
        (["t", "--floor", "acme"], "must be TENANT=BLOCKS, got 'acme'"),
        (["t", "--ceiling", "acme=-1"], "must be an integer from 0"),
        (["t", "--limit", "0"], "must be an integer from 1"),
        (["t", "--picture", "p.gif"], "must end with .png or .svg"),
        (["t", "--picture", "/no/such/folder/p.png"], "/no/such/folder is no directory"),
        (["t", "--csv", "-"], "only --json writes to standard output"),
    ],
)
def test_bad_usage_is_2(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        replay(*argv)

    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err
