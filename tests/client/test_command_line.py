"""The `prefixcache` command against a fake worker: what it prints, writes and returns."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, abort, completion, delta, stats

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line import serve

COMMAND = [sys.executable, "-m", "prefixcache_client.command_line.main"]

NOT_UTF8 = "caf\udce9"
"""How Python hands over an argument with a byte that is no UTF-8."""

Run = Callable[..., int]


@pytest.fixture
def run(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command line whose default address is the fake worker's; returns the exit code."""
    monkeypatch.setenv("PREFIXCACHE_ADDRESS", worker.address)
    monkeypatch.setenv("COLUMNS", "160")

    def run_command(*argv: str, stdin: str = "") -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        return command_line.main(argv)

    return run_command


def fail(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
    yield delta("never")


class TestGenerate:
    def test_the_answer_goes_to_stdout_and_the_cost_to_stderr(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("generate", "Once upon a time") == 0

        printed = capsys.readouterr()
        assert printed.out == "Hello world\n"
        assert " ".join(printed.err.split()) == (
            "10 prompt tokens = 4 cached + 6 computed, 2 generated;"
            " first token after 500 ms, last after 1.00 s"
        )

    def test_it_is_greedy_unless_told_otherwise(self, run: Run, worker: FakeWorker) -> None:
        run("generate", "hi")
        run("generate", "hi", "--temperature", "0.7", "--top-p", "0.9", "--top-k", "40", "--seed", "3")

        greedy, sampled = (request.sampling for request in worker.requests)
        assert greedy.HasField("temperature")
        assert greedy.temperature == 0
        assert not greedy.HasField("top_p")
        assert (sampled.temperature, sampled.top_p) == (pytest.approx(0.7), pytest.approx(0.9))
        assert (sampled.top_k, sampled.seed) == (40, 3)

    def test_every_flag_reaches_its_field(self, run: Run, worker: FakeWorker) -> None:
        run(
            *("generate", "hi", "--system", "Be kind.", "--public-system", "--salt", "s", "--tenant", "acme"),
            *("--max-tokens", "7", "--stop", "END", "--stop", "\n", "--ignore-eos", "--no-cache"),
        )

        (request,) = worker.requests
        assert [(turn.role, turn.content) for turn in request.chat.messages] == [
            ("system", "Be kind."),
            ("user", "hi"),
        ]
        assert request.cache == inference_pb2.CacheOptions(
            mode=inference_pb2.CacheOptions.MODE_OFF, public_messages=1, salt="s"
        )
        assert request.stop_conditions == inference_pb2.StopConditions(
            max_tokens=7, stop=["END", "\n"], ignore_eos=True
        )
        assert worker.tenants == ["acme"]

    def test_public_tokens(self, run: Run, worker: FakeWorker) -> None:
        run("generate", "hi", "--public-tokens", "32")

        assert worker.requests[0].cache.public_tokens == 32

    def test_the_prompt_is_read_from_stdin_as_it_stands(self, run: Run, worker: FakeWorker) -> None:
        run("generate", stdin="two\nlines\n")

        assert worker.requests[0].text == "two\nlines\n"

    def test_the_seed_may_be_any_uint64(self, run: Run, worker: FakeWorker) -> None:
        run("generate", "hi", "--seed", str(2**64 - 1))

        assert worker.requests[0].sampling.seed == 2**64 - 1

    def test_several_answers_are_printed_one_after_the_other(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("generate", "hi", "--n", "2")

        assert capsys.readouterr().out == "[0] Hello world\n[1] Hello world\n"

    def test_json_on_stdout_is_all_there_is_on_stdout(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("generate", "hi", "--json", "-")

        answer = json.loads(capsys.readouterr().out)
        assert answer["choices"] == [
            {"index": 0, "text": "Hello world", "token_ids": [5, 6], "finish_reason": "stop"}
        ]
        assert answer["usage"]["cached_tokens"] == 4
        assert answer["timing"]["first_token_seconds"] == 0.5

    def test_control_characters_do_not_reach_the_terminal(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            yield delta("a\x1b[2Jb\tç\n", 1, finish=inference_pb2.FINISH_REASON_LENGTH)
            yield completion()

        worker.generate = behaviour
        run("generate", "hi")

        assert capsys.readouterr().out == "a\ufffd[2Jb\tç\n\n"


class TestChat:
    def test_each_line_is_a_turn_that_follows_the_turns_before(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("chat", "--system", "Be kind.", stdin="Hi\n\n  And you? ") == 0

        assert capsys.readouterr().out == "Hello world\nHello world\n"
        assert [(turn.role, turn.content) for turn in worker.requests[1].chat.messages] == [
            ("system", "Be kind."),
            ("user", "Hi"),
            ("assistant", "Hello world"),
            ("user", "And you?"),
        ]
        assert len(worker.requests) == 2

    def test_json_holds_every_answer(self, run: Run, tmp_path: Path) -> None:
        run("chat", "--json", str(tmp_path / "chat.json"), stdin="Hi\nHo\n")

        answers = json.loads((tmp_path / "chat.json").read_text())
        assert [answer["choices"][0]["text"] for answer in answers] == ["Hello world"] * 2


class TestStats:
    def test_counts_come_with_bytes_and_percent(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.stats = stats(peak_live=150, rows_read=25, rows_unshared=100)

        assert run("stats") == 0

        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["total", "4,096", "4.0", "GiB"] in lines
        assert ["peak", "live", "150", "150.0", "MiB"] in lines
        assert ["cached", "900", "90.0", "%"] in lines
        assert ["kv", "rows", "read", "25", "25.0", "%"] in lines
        assert ["steps", "40"] in lines

    def test_json_has_every_count_by_its_own_name(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.stats = stats(peak_live=150)
        run("stats", "--reset-peaks", "--json", "-")

        counts = json.loads(capsys.readouterr().out)
        assert (counts["blocks"]["peak_live"], counts["tokens"]["cached"]) == (150, 900)
        assert counts["requests"]["finished"] == 17
        assert worker.peaks_were_reset


class TestTree:
    NODES = (
        cache_pb2.TreeNode(
            id=1,
            public=True,
            num_tokens=1760,
            num_blocks=110,
            num_readers=16,
            preview="You are\n[bold]an\x1b agent",
            last_used=9,
        ),
        cache_pb2.TreeNode(id=2, parent_id=1, tenant="acme", num_tokens=20, num_blocks=2, last_used=4),
        cache_pb2.TreeNode(id=3, tenant="other", num_tokens=16, num_blocks=1, last_used=1),
    )

    def test_children_hang_under_their_parents(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.nodes = list(self.NODES)

        assert run("tree") == 0

        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
            "root: 3 nodes, 113 blocks",
            "├── public  1,760 tokens in 110 blocks, 16 readers, age 0  You are [bold]an\ufffd agent",
            "│   └── acme  20 tokens in 2 blocks, age 5",
            "└── other  16 tokens in 1 block, age 8",
        ]

    def test_an_empty_tree_is_drawn_too(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        run("tree")

        assert capsys.readouterr().out == "root: 0 nodes, 0 blocks\n"

    def test_json_and_depth(self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]) -> None:
        worker.nodes = list(self.NODES)
        run("tree", "--max-depth", "2", "--json", "-")

        nodes = json.loads(capsys.readouterr().out)
        assert [(node["id"], node["parent_id"], node["tenant"]) for node in nodes] == [
            (1, 0, ""),
            (2, 1, "acme"),
        ]


class TestServe:
    def test_it_becomes_the_worker_with_every_argument(self, monkeypatch: pytest.MonkeyPatch) -> None:
        worker_arguments = ["--kv-blocks", "64", "--help", "--json"]
        executed: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda path, argv: executed.append([path, *argv]) or sys.exit(0))

        with pytest.raises(SystemExit):
            command_line.main(["serve", *worker_arguments])

        assert executed == [[sys.executable, sys.executable, "-m", "prefixcache_worker", *worker_arguments]]

    def test_a_missing_extra_is_one_sentence_with_the_command(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(serve, "_WORKER_MODULES", ("json", "no_such_module"))

        assert command_line.main(["serve"]) == 1

        assert capsys.readouterr().err == (
            "prefixcache: the worker needs no_such_module:"
            " install it with pip install 'prefixcache[worker]'\n"
        )


def test_the_client_needs_neither_the_worker_nor_torch() -> None:
    script = (
        "import sys, prefixcache_client.command_line.main;"
        "sys.exit(' '.join({'torch', 'numpy', 'prefixcache_worker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stderr.strip() == ""


class TestExitCodes:
    def test_a_failed_call_is_1_and_one_sentence(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.generate = fail

        assert run("generate", "hi") == 1

        assert capsys.readouterr().err == "prefixcache: the queue is full\n"

    @pytest.mark.parametrize(
        "argv",
        [
            [],
            ["dance"],
            ["stats", "--no-such-flag"],
            ["generate", "hi", "--max-tokens", "0"],
            ["generate", "hi", "--n", "many"],
            ["generate", "hi", "--tenant", "a\nb"],
            ["generate", "hi", "--deadline", "nan"],
            ["generate", "hi", "--deadline", "inf"],
            ["generate", "hi", "--top-k", "2147483648"],
            ["generate", "hi", "--seed", "18446744073709551616"],
            ["generate", NOT_UTF8],
            ["generate", "hi", "--system", NOT_UTF8],
            ["generate", "hi", "--stop", NOT_UTF8],
            ["generate", "hi", "--salt", NOT_UTF8],
            ["generate", "hi", "--tenant", NOT_UTF8],
            ["chat", "--system", NOT_UTF8],
            ["stats", "--address", NOT_UTF8],
            ["generate", "hi", "--public-system"],
            ["generate", "hi", "--public-tokens", "1", "--public-system", "--system", "s"],
            ["stats", "--json", "/no/such/folder/stats.json"],
            ["stats", "--json", os.curdir],
            ["bench"],
            ["demo", "--address", "127.0.0.1:1", "--", "--device", "cuda"],
        ],
    )
    def test_bad_usage_is_2(self, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            command_line.main(argv)

        assert exit_.value.code == 2
        assert "usage: prefixcache" in capsys.readouterr().err

    def test_a_file_that_cannot_be_written_is_1(
        self, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / ("x" * 300)

        assert run("stats", "--json", str(path)) == 1

        assert (
            capsys.readouterr().err
            == f"prefixcache: [Errno {errno.ENAMETOOLONG}] File name too long: '{path}'\n"
        )

    @pytest.mark.parametrize("command", ["generate", "chat"])
    @pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # as the locale decides
    def test_input_that_is_no_text_is_1_and_one_sentence(
        self,
        worker: FakeWorker,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        command: str,
        errors: str,
    ) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8", errors=errors)
        monkeypatch.setattr("sys.stdin", stdin)

        assert command_line.main([command, "--address", worker.address]) == 1

        assert capsys.readouterr().err == "prefixcache: standard input is not UTF-8 text\n"
        assert worker.requests == []

    def test_a_deadline_is_kept(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            worker.cancelled.wait(60)
            yield delta("never")

        worker.generate = behaviour

        assert run("generate", "hi", "--deadline", "0.2") == 1
        assert "the deadline passed before the answer was complete" in capsys.readouterr().err

    def test_ctrl_c_is_130_and_cancels_the_call(self, worker: FakeWorker) -> None:
        def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            yield delta("Hello", 5)
            worker.cancelled.wait(60)

        worker.generate = behaviour
        with subprocess.Popen(
            [*COMMAND, "generate", "hi", "--address", worker.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.read(5) == "Hello"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)

        assert process.returncode == 130
        assert errors == ""
        assert worker.cancelled.wait(60)

    def test_a_reader_that_goes_away_leaves_no_traceback(self, worker: FakeWorker) -> None:
        def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            yield delta("Hello", 5)
            while context.is_active():
                yield delta("x" * 4096, 6)

        worker.generate = behaviour
        with subprocess.Popen(
            [*COMMAND, "generate", "hi", "--address", worker.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.read(5) == "Hello"
            process.stdout.close()
            assert process.stderr is not None
            errors = process.stderr.read()

        assert process.returncode == 1
        assert errors == ""
