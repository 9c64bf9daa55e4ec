"""Traces with broken parts: what is left out is named, and the rest is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache import unpack_tokens
from prefixcache.replay import LeftOut, TraceError, read_trace

MOONCAKE = {"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [46, 47]}
OWN = {"t": 0, "tenant": "acme", "block_size": 16, "hash_ids": [7], "output_length": 3}
AGENT = {"t": 0, "model": "large", "hash_ids": [1, 2], "out": 5, "in": 200}


def write_lines(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path: Path) -> tuple[list[list[int]], list[str]]:
    """The prompts that are read, and what is said of the others."""
    left_out = LeftOut()
    prompts = [unpack_tokens(request.prompt_ids) for request in read_trace(path, on_broken=left_out)]
    return prompts, [sentence.removeprefix(f"left out: {path}") for sentence in left_out.sentences()]


def test_broken_lines_are_left_out_and_named(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t",
        MOONCAKE,
        '{"timestamp": 1, "hash',
        MOONCAKE | {"hash_ids": [46, -1]},
        "[1, 2]",
        MOONCAKE | {"hash_ids": [46, 48]},
    )
    assert read(path) == (
        [[0, 1], [0, 2]],
        [
            ":2: damaged JSON at column 18: Unterminated string starting at",
            ":3: 'hash_ids' has -1; integers from 0 to 18446744073709551615 are expected",
            ":4: a JSON object is expected, not [1, 2]",
        ],
    )


def test_a_broken_line_does_not_set_the_time(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", OWN, OWN | {"t": 99, "tenant": 3}, OWN | {"t": 1})
    assert read(path) == ([[0], [0]], [":2: 'tenant' is 3; a text is expected"])


def test_the_first_line_may_be_broken_too(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", '{"t": 0, ', {"comment": 1}, OWN | {"block_size": "16"}, OWN)
    prompts, left_out = read(path)
    assert prompts == [[0]]
    assert [sentence[:3] for sentence in left_out] == [":1:", ":2:", ":3:"]


@pytest.mark.parametrize("content", ["", "no trace\n", '{"prompt": 1}\n'])
def test_what_is_no_trace_at_all_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t"
    path.write_text(content)
    with pytest.raises(TraceError):
        read_trace(path, on_broken=LeftOut())


def test_broken_requests_of_a_session_are_left_out(tmp_path: Path) -> None:
    subagents = [{"t": -1, "requests": [AGENT]}, {"t": 5, "requests": [AGENT | {"out": "?"}, AGENT]}]
    requests = [AGENT, 4, AGENT | {"hash_ids": []}, *subagents, AGENT | {"hash_ids": [1, 3], "t": 9}]
    path = write_lines(tmp_path / "a.json", {"block_size": 64, "requests": requests})
    assert read(path) == (
        [[0, 1], [0, 1], [0, 2]],
        [
            ": requests 2: a JSON object is expected, not 4",
            ": requests 3: 'hash_ids' is empty; a prompt has at least one id",
            ": requests 4: 't' is -1; a time of at least 0 is expected",
            ": requests 5: requests 1: 'out' is \"?\"; an integer of at least 0 is expected",
        ],
    )


def test_broken_sessions_of_a_folder_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    write_lines(tmp_path / "b.json", {"block_size": 64, "requests": [AGENT]})
    write_lines(tmp_path / "c.json", {"block_size": 32, "requests": [AGENT]})
    prompts, left_out = read(tmp_path)
    assert prompts == [[0, 1]]
    assert left_out[0].startswith("/a.json:1: damaged JSON")
    assert left_out[1] == "/c.json: 'block_size' is not 64, as it is in b.json"


def test_a_folder_of_broken_sessions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(TraceError, match="none of its 1 sessions can be read"):
        read_trace(tmp_path, on_broken=LeftOut())


def test_only_the_first_ten_are_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", OWN, *["{"] * 1212)
    _, sentences = read(path)
    assert len(sentences) == 11
    assert sentences[-1] == "left out: 1,202 more"


def test_recorded_lengths_are_kept_where_the_trace_has_them(tmp_path: Path) -> None:
    mooncake = write_lines(
        tmp_path / "t", MOONCAKE, {k: v for k, v in MOONCAKE.items() if k != "input_length"}
    )
    assert [request.num_prompt_tokens for request in read_trace(mooncake)] == [700, None]
    agent = write_lines(tmp_path / "a.json", {"block_size": 64, "requests": [AGENT]})
    assert [request.num_prompt_tokens for request in read_trace(agent)] == [200]
    own = write_lines(tmp_path / "o", OWN)
    assert [request.num_prompt_tokens for request in read_trace(own)] == [None]
    broken = write_lines(tmp_path / "b", MOONCAKE | {"input_length": 0})
    with pytest.raises(TraceError, match="'input_length' is 0"):
        list(read_trace(broken))
