"""The demo: its conversations, its figures, and that its worker never outlives it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console
from support.fake_worker import FakeWorker, completion, delta, stats

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line.answer_board import AnswerBoard
from prefixcache_client.command_line.demo_policy import TENANTS, conversation, policy

COMMAND = [sys.executable, "-m", "prefixcache_client.command_line.main", "demo"]

# A worker process that answers nothing: it prints its process id into a file, listens, and waits.
SILENT_WORKER = """
import os, pathlib, signal, sys
sys.path[:0] = {paths!r}
from support.fake_worker import FakeWorker

def silent(request, context):
    pathlib.Path({marker!r}).write_text(str(os.getpid()))
    worker.cancelled.wait(60)
    yield from ()

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with FakeWorker(silent) as worker:
    print("listening on " + worker.address, flush=True)
    while True:
        signal.pause()
"""


class TestConversations:
    def test_four_tenants_send_sixteen_different_questions(self) -> None:
        visits = [(tenant.name, question) for tenant in TENANTS for question in tenant.questions]

        assert len(TENANTS) == 4
        assert len(set(visits)) == len(visits) == 16

    def test_only_the_policy_is_the_same_for_all(self) -> None:
        first_messages = {conversation(tenant, "?")[0]["content"] for tenant in TENANTS}
        second_messages = {conversation(tenant, "?")[1]["content"] for tenant in TENANTS}

        assert first_messages == {policy()}
        assert len(second_messages) == len(TENANTS)

    def test_questions_of_one_tenant_begin_alike(self) -> None:
        """Then their prompts part inside a block, not only at its edge."""
        for tenant in TENANTS:
            assert len({question.split()[0] for question in tenant.questions}) == 1


def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    """The first request is cold; each later one finds 1,760 of 1,800 tokens."""
    question = request.chat.messages[-1].content
    yield delta(f"About: {question}", 5)
    yield delta(" Done.", 6, finish=inference_pb2.FINISH_REASON_LENGTH)
    cold = question == TENANTS[0].questions[0]
    yield completion(prompt=1800, cached=0 if cold else 1760, generated=40)


@pytest.fixture
def demo_worker() -> Iterator[FakeWorker]:
    """Answers the demo."""
    with FakeWorker(answer) as worker:
        worker.stats = stats(peak_live=150, peak_live_unshared=2000)
        worker.nodes = [cache_pb2.TreeNode(id=1, public=True, num_tokens=1760, num_blocks=110)]
        yield worker


class TestRun:
    def test_every_request_has_the_public_policy_and_its_tenant(self, demo_worker: FakeWorker) -> None:
        assert command_line.main(["demo", "--address", demo_worker.address, "--max-tokens", "24"]) == 0

        assert len(demo_worker.requests) == 16
        for request in demo_worker.requests:
            assert request.cache.public_messages == 1
            assert request.chat.messages[0].content == policy()
            assert request.stop_conditions.max_tokens == 24
            assert request.sampling.HasField("temperature")
        first, *others = (tenant.name for tenant in TENANTS)
        num_looks = 3  # the counts before and after, and the tree
        assert Counter(demo_worker.tenants) == {first: 4 + num_looks, **dict.fromkeys(others, 4)}

    def test_figures_are_sums_of_the_workers_answers(self, demo_worker: FakeWorker, tmp_path: Path) -> None:
        command_line.main(["demo", "--address", demo_worker.address, "--json", str(tmp_path / "demo.json")])

        rows = {row["name"]: row for row in json.loads((tmp_path / "demo.json").read_text())}
        assert rows["requests"]["value"] == 16
        assert rows["prompt tokens"]["value"] == 16 * 1800
        assert rows["prompt tokens cached"]["value"] == 15 * 1760
        assert rows["prompt tokens computed"]["value"] == 1800 + 15 * 40
        assert rows["first token, first request"]["value"] == 0.25
        assert rows["first token, first request"]["note"] == "without queue, 0 tokens cached"
        assert rows["first token, later requests"]["spread"] == [0.25, 0.25]
        assert rows["KV in use at the peak"]["value"] == 150 * 1024 * 1024
        assert rows["first token, later requests"]["note"] == "without queue"
        assert rows["first token, later requests, with queue"]["value"] == 0.5
        assert rows["KV in use at the peak"]["note"] == "7.5 % of that without sharing"
        assert rows["output"]["unit"] == "tokens/s"
        assert (
            rows["output"]["value"] == 15 * 40 / 1.0
        )  # tokens of the later requests, until the last one's end
        assert demo_worker.peaks_were_reset

    def test_answers_table_and_tree_are_printed_whole(
        self, demo_worker: FakeWorker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        command_line.main(["demo", "--address", demo_worker.address])

        printed = capsys.readouterr().out
        for tenant in TENANTS:
            for question in tenant.questions:
                assert printed.count(f"  About: {question} Done.\n") == 1
        assert printed.count("first token after 500 ms with queue\n") == 16
        assert "150.0 MiB" in printed
        assert "└── public  1,760 tokens in 110 blocks" in printed
        assert "\x1b" not in printed

    def test_a_failed_request_ends_the_demo_with_its_sentence(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            context.abort(grpc.StatusCode.INTERNAL, "the engine failed")
            yield delta("never")

        with FakeWorker(broken) as worker:
            assert command_line.main(["demo", "--address", worker.address]) == 1

        assert capsys.readouterr().err == "prefixcache: the engine failed\n"

    def test_a_failure_among_the_concurrent_requests_is_one_sentence_too(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def second_fails(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            if request.chat.messages[-1].content == TENANTS[2].questions[1]:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
            yield from answer(request, context)

        with FakeWorker(second_fails) as worker:
            assert command_line.main(["demo", "--address", worker.address]) == 1

        assert capsys.readouterr().err == "prefixcache: the queue is full\n"


class TestOwnWorker:
    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, str]:
        """Where `python -m prefixcache_worker` starts the silent worker."""
        package = tmp_path / "prefixcache_worker"
        package.mkdir()
        (package / "__init__.py").touch()
        paths = [path for path in sys.path if path.endswith("tests")]
        script = SILENT_WORKER.format(paths=paths, marker=str(tmp_path / "worker-id"))
        (package / "__main__.py").write_text(script)
        return {**os.environ, "PYTHONPATH": str(tmp_path)}

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_its_worker_is_gone_after_a_signal(
        self, tmp_path: Path, environment: dict[str, str], number: signal.Signals, status: int
    ) -> None:
        marker = tmp_path / "worker-id"
        with subprocess.Popen(COMMAND, env=environment, stderr=subprocess.PIPE, text=True) as process:
            while not (marker.exists() and marker.read_text()):
                assert process.poll() is None
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)

        assert (process.returncode, errors) == (status, "")
        with pytest.raises(ProcessLookupError):
            os.kill(int(marker.read_text()), 0)

    def test_arguments_behind_two_dashes_are_the_workers(
        self, tmp_path: Path, environment: dict[str, str]
    ) -> None:
        script = "import sys; sys.exit('got: ' + ' '.join(sys.argv[1:]))"
        (tmp_path / "prefixcache_worker" / "__main__.py").write_text(script)

        done = subprocess.run(
            [*COMMAND, "--", "--kv-blocks", "64"], env=environment, capture_output=True, text=True
        )

        assert done.returncode == 1
        assert done.stderr == "prefixcache: got: --address 127.0.0.1:0 --trust-tenant-header --kv-blocks 64\n"


class TestAnswerBoard:
    def test_elsewhere_only_whole_answers_are_printed(self) -> None:
        screen = io.StringIO()
        with AnswerBoard(Console(file=screen, width=100, markup=False)) as board:
            board.start("a", "Q1?")
            board.start("b", "Q2?")
            board.add("a", "Q1?", "one ")
            board.add("b", "Q2?", "[red]two\x1b[2J")
            board.add("a", "Q1?", "more")
            assert screen.getvalue() == ""
            board.finish("a", "Q1?", "5 cached")
            board.finish("b", "Q2?", "6 cached")

        assert screen.getvalue() == (
            "a  Q1?  5 cached\n  one more\n\nb  Q2?  6 cached\n  [red]two\ufffd[2J\n\n"
        )

    def test_on_a_terminal_answers_under_way_are_shown_and_taken_away(self) -> None:
        screen = io.StringIO()
        console = Console(file=screen, width=100, height=40, force_terminal=True, markup=False)
        with AnswerBoard(console) as board:
            board.start("a", "Q1?")
            board.add("a", "Q1?", "half of it")
            board.refresh()
            assert "half of it" in screen.getvalue()
            board.finish("a", "Q1?", "5 cached")

        assert screen.getvalue().count("half of it\n") == 1
