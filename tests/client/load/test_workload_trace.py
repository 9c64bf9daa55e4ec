"""Traces sent again: equal blocks are equal tokens, and lengths and times are scaled."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sent_sessions import num_common

from prefixcache.replay import TraceError
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.workloads import PromptTooLongError, RecordedTrace

SERVER = {"vocabulary_size": 49_152, "context_length": 8192, "block_size": 16}
OWN = {"tenant": "acme", "block_size": 16, "output_length": 8}


def write_lines(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def prompts(workload: RecordedTrace) -> list[list[int]]:
    return [list(session.turns[0].prompt) for session in workload.sessions()]  # type: ignore[arg-type]


# Each block id has one parent, as in a tree of prefixes.
paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8)


@settings(max_examples=60)
@given(paths, st.sampled_from([1 / 16, 0.25, 1, 2.5]), st.integers(0, 5))
def test_prompts_share_the_blocks_that_were_shared(
    tmp_path_factory: pytest.TempPathFactory, tree: list[list[int]], scale: float, seed: int
) -> None:
    """With every block scaled, down to one token."""
    ids = [
        [int("1" + "".join(map(str, path[:depth])), 10) for depth in range(1, len(path) + 1)] for path in tree
    ]
    path = write_lines(
        tmp_path_factory.mktemp("trace") / "trace.jsonl",
        *(OWN | {"t": number, "hash_ids": block_ids} for number, block_ids in enumerate(ids)),
    )
    made = prompts(RecordedTrace(trace=path, length_scale=scale, seed=seed).fitted_to(SERVER))

    block_tokens = round(16 * scale)
    assert [len(prompt) for prompt in made] == [len(block_ids) * block_tokens for block_ids in ids]
    for (a, one), (b, other) in combinations(enumerate(made), 2):
        assert num_common(one, other) == num_common(ids[a], ids[b]) * block_tokens


def test_the_recorded_length_ends_inside_the_last_block_or_behind_it(tmp_path: Path) -> None:
    mooncake = {"timestamp": 0, "output_length": 64}
    path = write_lines(
        tmp_path / "trace.jsonl",
        mooncake | {"input_length": 1000, "hash_ids": [1, 2]},
        mooncake | {"input_length": 1100, "hash_ids": [1, 2], "timestamp": 3000},
        mooncake | {"input_length": 5, "hash_ids": [9], "timestamp": 4000},
    )
    workload = RecordedTrace(trace=path, length_scale=1 / 8, time_scale=0.5).fitted_to(SERVER)

    inside, behind, short = prompts(workload)

    assert (len(inside), len(behind), len(short)) == (64 + 61, 128 + 10, 1)
    assert behind[:125] == inside
    sessions = list(workload.sessions())
    assert [session.seconds for session in sessions] == [0, 1.5, 2]
    assert [session.turns[0].max_tokens for session in sessions] == [8, 8, 8]
    assert [session.tenant for session in sessions] == [None] * 3


def test_times_count_from_the_first_request(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t", *(OWN | {"t": t, "hash_ids": [1]} for t in (1_700_000_000, 1_700_000_003))
    )
    workload = RecordedTrace(trace=path, time_scale=0.5).fitted_to(SERVER)
    assert [session.seconds for session in workload.sessions()] == [0, 1.5]


def test_what_another_model_has_is_different(tmp_path: Path) -> None:
    lines = [OWN | {"t": 0, "hash_ids": [1, 2], "model": model} for model in ("a", "b", "a")]
    one, other, same = prompts(RecordedTrace(trace=write_lines(tmp_path / "t", *lines)).fitted_to(SERVER))
    assert one == same
    assert num_common(one, other) == 0


def test_tokens_are_sent_as_they_are_with_their_tenant_and_what_is_public(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", OWN | {"t": 0, "token_ids": [5, 1, 2], "public_tokens": 2})
    workload = RecordedTrace(trace=path).fitted_to(SERVER)
    (session,) = workload.sessions()
    assert (session.turns[0].prompt, session.tenant, session.public_tokens) == ([5, 1, 2], "acme", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_scale": 0.5}, "has the tokens themselves, which are sent as they are"),
        ({"prompt_form": "text"}, "has the tokens themselves, which are sent as they are"),
        ({}, "prompt 1 of t has tokens that the server has not: its last is 49,151"),
    ],
)
def test_a_trace_of_tokens_must_suit_the_server(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = write_lines(tmp_path / "t", OWN | {"t": 0, "token_ids": [60_000]})
    with pytest.raises(PrefixCacheClientError) as error:
        RecordedTrace(trace=path, **options).fitted_to(SERVER)
    assert message in str(error.value)


def test_a_prompt_longer_than_the_context_is_refused_or_clipped(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t", *(OWN | {"t": 0, "hash_ids": list(range(n)), "output_length": 40} for n in (2, 8, 9))
    )
    with pytest.raises(PromptTooLongError) as error:
        RecordedTrace(trace=path).fitted_to({"context_length": 150})
    assert str(error.value).startswith("prompt 2 of t may be 128 tokens long and have 40 generated")

    workload = RecordedTrace(trace=path, clip=True).fitted_to({"context_length": 150})

    whole, clipped, also_clipped = prompts(workload)
    assert workload.notes == ("clipped to the context: 2 of 3 prompts",)
    assert (len(whole), len(clipped)) == (32, 110)
    assert also_clipped == clipped


def test_an_answer_is_clipped_to_half_the_context_at_most(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", OWN | {"t": 0, "hash_ids": [1, 2], "output_length": 500})
    (session,) = RecordedTrace(trace=path, clip=True).fitted_to({"context_length": 20}).sessions()
    assert (len(session.turns[0].prompt), session.turns[0].max_tokens) == (10, 10)


def test_broken_lines_are_named_and_counted_and_the_rest_runs(tmp_path: Path) -> None:
    good = [OWN | {"t": t, "hash_ids": [t]} for t in range(3)]
    path = write_lines(tmp_path / "t", good[0], '{"t": ', good[1], OWN | {"t": 1}, good[2])
    with pytest.raises(TraceError, match=":2: damaged JSON"):
        RecordedTrace(trace=path, strict=True).fitted_to(SERVER)

    workload = RecordedTrace(trace=path).fitted_to(SERVER)

    assert workload.num_sessions == len(prompts(workload)) == 3
    assert workload.notes == (
        f"left out: {path}:2: damaged JSON at column 7: Expecting value",
        f"left out: {path}:4: 'hash_ids' is missing",
    )


def test_a_trace_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", OWN | {"t": 0, "hash_ids": []})
    with pytest.raises(TraceError, match="has no request that is not broken"):
        RecordedTrace(trace=path).fitted_to(SERVER)


def test_a_limit_stops_early(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", *(OWN | {"t": t, "hash_ids": [t]} for t in range(5)))
    workload = RecordedTrace(trace=path, limit=2).fitted_to(SERVER)
    assert workload.num_sessions == len(prompts(workload)) == 2
