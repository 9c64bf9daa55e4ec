"""Reading recorded traces: three formats, and what is said of damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache import Namespace, unpack_tokens
from prefixcache.replay import TraceError, TraceRequest, read_trace

OWN = {"t": 0, "tenant": "acme", "block_size": 16, "hash_ids": [7], "output_length": 3}
SESSION = {"block_size": 64, "hash_id_scope": "local"}


def write_lines(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prompts(path: Path) -> list[list[int]]:
    return [unpack_tokens(request.prompt_ids) for request in read_trace(path)]


def agent_request(t: float, *hash_ids: int, model: str = "large") -> dict[str, Any]:
    return {"t": t, "model": model, "hash_ids": list(hash_ids), "out": 5}


class TestMooncake:
    def test_a_line_is_a_request(self, tmp_path: Path) -> None:
        path = write_lines(
            tmp_path / "trace.jsonl",
            {"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [46, 47]},
            {"timestamp": 1500, "input_length": 800, "output_length": 0, "hash_ids": [46, 48]},
        )

        trace = read_trace(path)

        assert (trace.name, trace.num_requests) == ("trace.jsonl", 2)
        assert (trace.block_size, trace.has_tokens) == (512, False)
        first, second = trace
        assert (first.arrival_seconds, second.arrival_seconds) == (0, 1.5)
        assert (first.num_output_tokens, second.num_output_tokens) == (20, 0)
        assert first.namespace == second.namespace
        assert prompts(path) == [[0, 1], [0, 2]]


class TestOwnFormat:
    def test_tokens(self, tmp_path: Path) -> None:
        line = {"t": 0.25, "tenant": "acme", "block_size": 16, "token_ids": [5, 1, 2], "output_length": 8}
        path = write_lines(
            tmp_path / "trace.jsonl",
            line,
            line | {"model": "m", "salt": "s", "public_tokens": 2, "output_ids": [9, 9, 4]},
        )

        trace = read_trace(path)

        assert (trace.block_size, trace.has_tokens) == (16, True)
        plain, full = trace
        assert plain == TraceRequest(
            arrival_seconds=0.25,
            namespace=Namespace("default", "acme"),
            prompt_ids=plain.prompt_ids,
            num_output_tokens=8,
        )
        assert full.namespace == Namespace("m", "acme", "s")
        assert full.num_public_ids == 2
        assert unpack_tokens(full.prompt_ids) == [5, 1, 2]
        assert (unpack_tokens(full.output_ids), full.num_output_tokens) == ([9, 9, 4], 3)

    def test_only_a_request_with_a_public_beginning_may_publish_it(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "trace.jsonl", OWN, OWN | {"public_tokens": 16})

        assert [request.namespace.is_publisher for request in read_trace(path)] == [False, True]

    def test_hashes_of_any_length_are_numbered(self, tmp_path: Path) -> None:
        big = 2**64 - 1
        path = write_lines(
            tmp_path / "trace.jsonl", OWN | {"hash_ids": [big, 3]}, OWN | {"hash_ids": [big, 2**32]}
        )

        assert prompts(path) == [[0, 1], [0, 2]]

    def test_a_public_boundary_inside_a_block_leaves_that_block_private(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "trace.jsonl", OWN | {"hash_ids": [1, 2, 3], "public_tokens": 47})

        (request,) = read_trace(path)
        assert request.num_public_ids == 2

    def test_blank_lines_do_not_count(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        path.write_text(f"\n{json.dumps(OWN)}\n\n{json.dumps(OWN)}\n \n")

        assert read_trace(path).num_requests == len(prompts(path)) == 2

    def test_lines_are_read_only_when_asked_for(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        path.write_text(f"{json.dumps(OWN)}\n{{damaged\n")

        requests = iter(read_trace(path))

        assert next(requests).num_output_tokens == 3
        with pytest.raises(TraceError):
            next(requests)

    def test_each_iteration_reads_anew(self, tmp_path: Path) -> None:
        trace = read_trace(write_lines(tmp_path / "trace.jsonl", OWN, OWN | {"hash_ids": [8]}))

        assert list(trace) == list(trace)
        assert len(list(trace)) == 2


class TestCodingAgentSessions:
    def test_ids_of_different_sessions_are_different_and_requests_are_merged_by_time(
        self, tmp_path: Path
    ) -> None:
        for name, times in (("a", (0, 9)), ("b", (0, 4))):
            requests = [agent_request(times[0], 1, 2), agent_request(times[1], 1, 3)]
            write_lines(tmp_path / f"{name}.json", SESSION | {"requests": requests})
        (tmp_path / "INDEX.csv").write_text("not a session")

        trace = read_trace(tmp_path)

        assert (trace.block_size, trace.has_tokens, trace.num_requests) == (64, False, 4)
        assert [request.arrival_seconds for request in trace] == [0, 0, 4, 9]
        assert prompts(tmp_path) == [[0, 1], [3, 4], [3, 5], [0, 2]]

    def test_a_subagents_times_count_from_its_start(self, tmp_path: Path) -> None:
        subagent = {"t": 10, "type": "subagent", "requests": [agent_request(0, 7), agent_request(5, 7, 8)]}
        requests = [agent_request(2, 1), subagent, agent_request(12, 1, 2, model="small")]
        path = write_lines(tmp_path / "a.json", SESSION | {"requests": requests})

        trace = list(read_trace(path))

        assert [request.arrival_seconds for request in trace] == [2, 10, 12, 15]
        assert [request.namespace.model for request in trace] == ["large", "large", "small", "large"]
        assert prompts(path) == [[0], [1], [0, 3], [1, 2]]

    def test_a_file_may_be_spread_over_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps(SESSION | {"requests": [agent_request(0, 4)]}, indent=2))

        assert prompts(path) == [[0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": -1}, "'t' is -1; a time of at least 0 is expected"),
        ({"t": float("nan")}, "'t' is NaN"),
        ({"t": True}, "'t' is true"),
        ({"t": 4.5}, "'t' goes back from 5 to 4.5; sort the lines by it"),
        (
            {"t": 10**400},
            "'t' is 1000000000000000000000000000000000000000...; a number below 9223372036854775808",
        ),
        (
            {"output_length": 2**63},
            "'output_length' is 9223372036854775808; a number below 9223372036854775808",
        ),
        ({"tenant": "half\ud800"}, "'tenant' has half a surrogate pair, which cannot be sent as text"),
        ({"tenant": None}, "'tenant' is missing"),
        ({"tenant": 3}, "'tenant' is 3; a text is expected"),
        ({"block_size": 32}, "'block_size' is not 16, as it was in the first line"),
        ({"hash_ids": []}, "'hash_ids' is empty; a prompt has at least one id"),
        ({"hash_ids": "7"}, "'hash_ids' is \"7\"; a list of ids is expected"),
        ({"hash_ids": [1, -1]}, "'hash_ids' has -1; integers from 0 to 18446744073709551615 are expected"),
        ({"hash_ids": [2**64]}, "'hash_ids' has 18446744073709551616"),
        ({"hash_ids": [1.0]}, "'hash_ids' has 1.0"),
        ({"hash_ids": None, "token_ids": [1]}, "'hash_ids' is missing"),
        ({"output_length": -2}, "'output_length' is -2; an integer of at least 0 is expected"),
        ({"public_tokens": 17}, "'public_tokens' is 17, more than the prompt has"),
        ({"salt": ["x" * 100]}, "'salt' is [\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    line = OWN | {"t": 5}
    path = write_lines(tmp_path / "trace.jsonl", line, line | change)

    with pytest.raises(TraceError) as error:
        list(read_trace(path))

    assert str(error.value).startswith(f"{path}:2: {message}")


def test_token_ids_fit_into_32_bits(tmp_path: Path) -> None:
    line = OWN | {"token_ids": [2**32]}
    path = write_lines(tmp_path / "trace.jsonl", line)

    with pytest.raises(TraceError, match=r":1: 'token_ids' has 4294967296; integers from 0 to 4294967295"):
        list(read_trace(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " is empty; a trace has at least one request"),
        (b"\n\n", " is empty"),
        (b"timestamp,tokens\n", ":1: damaged JSON at column 1: Expecting value"),
        (b'{\n "block_size": 64,\n "requests": [,\n', ":3: damaged JSON at column 15"),
        (b'{"t": "\xff"}\n', ":1: damaged JSON: 'utf-8' codec can't decode"),
        (b"[" * 100_000, ":1: damaged JSON: "),
        (b"[1, 2]\n", ": a JSON object is expected, not [1, 2]"),
        (b'{"prompt": "hi"}\n', ":1: no trace begins like this; give Mooncake's format"),
        (b'{"requests": 3, "block_size": 64}\n', ": 'requests' is 3; a list of objects is expected"),
        (b'{"requests": [{"t": 0}, 4], "block_size": 64}\n', ": requests 1: 'hash_ids' is missing"),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)

    with pytest.raises(TraceError) as error:
        read_trace(path)

    assert str(error.value).startswith(f"{path}{message}")


def test_sessions_agree_on_the_block_size(tmp_path: Path) -> None:
    for name, block_size in (("a", 64), ("b", 32)):
        write_lines(tmp_path / f"{name}.json", {"block_size": block_size, "requests": []})

    with pytest.raises(TraceError, match=r"b\.json: 'block_size' is not 64, as it is in a\.json"):
        read_trace(tmp_path)


def test_ids_that_are_not_local_to_their_session_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.json", SESSION | {"hash_id_scope": "global", "requests": []})

    with pytest.raises(TraceError, match="'hash_id_scope' must be \"local\""):
        read_trace(path)


def test_a_folder_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no \.json file"):
        read_trace(tmp_path)
