"""The `prefixcache` command against a fake worker: what it prints, writes and returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, completion, delta, stats

from prefixcache.v1 import cache_pb2, inference_pb2

Run = Callable[..., int]


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
            *("--priority", "-7"),
            *("--max-tokens", "7", "--stop", "END", "--stop", "\n", "--ignore-eos", "--no-cache"),
            *("--stop-token-id", "9", "--stop-token-id", "0", "--include-stop", "--min-tokens", "3"),
            *("--min-p", "0.5", "--repetition-penalty", "1.5", "--presence-penalty", "-0.5"),
            *("--frequency-penalty", "0.25", "--logit-bias", "5=-1.5", "--logit-bias", "6=100"),
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
            max_tokens=7,
            min_tokens=3,
            stop=["END", "\n"],
            stop_token_ids=[9, 0],
            include_stop=True,
            ignore_eos=True,
        )
        assert request.sampling == inference_pb2.SamplingParams(
            temperature=0,
            min_p=0.5,
            repetition_penalty=1.5,
            presence_penalty=-0.5,
            frequency_penalty=0.25,
            logit_bias={5: -1.5, 6: 100},
        )
        assert request.priority == -7
        assert worker.tenants == ["acme"]

    def test_rules_come_from_the_flag_or_a_file(
        self, run: Run, worker: FakeWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
        schema.write_text('{"type": "integer"}\n')
        grammar.write_text('start: "a"')
        for rule in (
            ("--json-schema", str(schema)),
            ("--json-schema", ' {"enum": [1]}'),
            ("--regex", "a+"),
            ("--grammar", str(grammar)),
        ):
            run("generate", "hi", *rule)
        assert [request.constraint for request in worker.requests] == [
            inference_pb2.Constraint(json_schema='{"type": "integer"}\n'),
            inference_pb2.Constraint(json_schema=' {"enum": [1]}'),
            inference_pb2.Constraint(regex="a+"),
            inference_pb2.Constraint(grammar='start: "a"'),
        ]
        with pytest.raises(SystemExit, match="2"):
            run("generate", "hi", "--json-schema", str(tmp_path / "gone.json"))
        assert "gone.json" in capsys.readouterr().err
        with pytest.raises(SystemExit, match="2"):
            run("generate", "hi", "--regex", "a", "--grammar", str(grammar))

    def test_log_probabilities_are_asked_for_with_json_only(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("generate", "hi", "--json", "-", "--logprobs", "0", "--prompt-logprobs", "20")
        (request,) = worker.requests
        assert (request.HasField("logprobs"), request.logprobs, request.prompt_logprobs) == (True, 0, 20)

        with pytest.raises(SystemExit, match="2"):
            run("generate", "hi", "--logprobs", "3")
        assert "--logprobs and --prompt-logprobs need --json" in capsys.readouterr().err
        assert len(worker.requests) == 1

    @pytest.mark.parametrize("bias", ["5", "=1", "x=1", "5=x", "-5=1", "5=1=1"])
    def test_a_bias_that_is_none(self, run: Run, capsys: pytest.CaptureFixture[str], bias: str) -> None:
        with pytest.raises(SystemExit, match="2"):
            run("generate", "hi", f"--logit-bias={bias}")
        assert f"must be ID=BIAS, such as 42=-1.5, got {bias!r}" in capsys.readouterr().err

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
            {
                "index": 0,
                "text": "Hello world",
                "token_ids": [5, 6],
                "finish_reason": "stop",
                "stop_reason": None,
                "logprobs": [],
            }
        ]
        assert answer["prompt_logprobs"] == []
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

    def test_without_a_worker_it_fails_before_the_first_question(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with FakeWorker() as gone:
            address = gone.address

        assert run("chat", "--address", address, stdin="") == 1

        assert capsys.readouterr().err.startswith(f"prefixcache: no worker answers at {address}: ")


class TestAbort:
    def test_it_says_what_became_of_the_request(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.live_ids = {"[b]mine"}

        assert run("abort", "[b]mine") == 0
        assert capsys.readouterr().out == "[b]mine: ended\n"
        assert run("abort", "another") == 1
        assert capsys.readouterr().err == "another: no request of this id runs or waits\n"


class TestHealth:
    def test_a_serving_worker_is_0_and_a_draining_one_1(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("health") == 0
        assert capsys.readouterr().out == "serving\n"
        worker.stop_serving()
        assert run("health") == 1
        assert capsys.readouterr().out == "not serving\n"


class TestStats:
    def test_counts_come_with_bytes_and_percent(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.stats = stats(peak_live=150, rows_read=25, rows_unshared=100)

        assert run("stats") == 0

        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["total", "4,096", "4.0", "GiB"] in lines
        assert ["peak", "live", "150", "150.0", "MiB"] in lines
        assert ["used", "slots", "0", "-"] in lines
        assert ["peak", "used", "slots", "1,800", "75.0", "%"] in lines
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
            "├── public  1,760 tokens in 110 blocks, 16 readers, 0 uses ago  You are [bold]an\ufffd agent",
            "│   └── acme  20 tokens in 2 blocks, 5 uses ago",
            "└── other  16 tokens in 1 block, 8 uses ago",
        ]

    def test_an_empty_tree_is_drawn_too(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        run("tree")

        assert capsys.readouterr().out == "root: 0 nodes, 0 blocks\n"

    def test_a_tree_that_was_cut_off_says_where(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.nodes = list(self.NODES)

        run("tree", "--max-depth", "1")

        title = capsys.readouterr().out.splitlines()[0]
        assert title == "root: 1 node, 110 blocks; nodes below level 1 are left out"

    def test_json_and_depth(self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]) -> None:
        worker.nodes = list(self.NODES)
        run("tree", "--max-depth", "2", "--json", "-")

        nodes = json.loads(capsys.readouterr().out)["nodes"]
        assert [(node["id"], node["parent_id"], node["tenant"]) for node in nodes] == [
            (1, 0, ""),
            (2, 1, "acme"),
        ]


class TestCredentials:
    def test_the_flag_overrules_the_variable(
        self, run: Run, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run("stats")
        monkeypatch.setenv("PREFIXCACHE_API_KEY", "")
        run("stats")
        monkeypatch.setenv("PREFIXCACHE_API_KEY", "pc_1_2")
        run("stats")
        run("generate", "hi", "--api-key", "pc_3_4", "--tenant", "acme")

        assert worker.authorizations == ["", "", "Bearer pc_1_2", "Bearer pc_3_4"]
        assert worker.tenants == ["", "", "", "acme"]

    def test_a_bad_key_is_not_shown(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as exit_:
            run("stats", "--api-key", "se cret")
        monkeypatch.setenv("PREFIXCACHE_API_KEY", "se cret")
        for argv in (["stats"], ["stats", "--help"]):
            with pytest.raises(SystemExit):
                run(*argv)

        assert exit_.value.code == 2
        printed = capsys.readouterr()
        assert printed.err.count("argument --api-key: the API key must be printable ASCII characters") == 2
        assert "cret" not in printed.err + printed.out


class TestSnapshot:
    def test_says_what_was_saved_and_restored(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("snapshot") == 0
        assert run("restore") == 0
        assert capsys.readouterr().out == "saved 3 blocks, 192 B, in 250 ms\nrestored 3 blocks\n"

    def test_a_refusal_is_one_sentence(
        self, run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker.nodes = [cache_pb2.TreeNode(id=1)]
        assert run("restore") == 1
        assert capsys.readouterr().err == "prefixcache: the cache is not empty\n"
