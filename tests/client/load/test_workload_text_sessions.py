"""Recorded text sessions, turn by turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache.replay import TraceError
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.session import Turn
from prefixcache_client.load.workloads import Amount, PromptTooLongError, TextSessions

SERVER = {"vocabulary_size": 49_152, "context_length": 8192}
CALLS = [
    (3.0, "Hi! And then?\n", ""),
    (1.0, "Hi!", "Hello, what is it?"),
    (2.0, "Hi!", ""),
    (5.5, "Hi! And then?\nWell?", "All done."),
    (6.0, "Another matter.", "Yes?"),
]


def write_session(folder: Path, calls: list[tuple[float, str, str]] = CALLS, name: str = "a") -> Path:
    path = folder / f"{name}.jsonl"
    lines = ({"timestamp": int(at * 1e6), "input": text, "output": answer} for at, text, answer in calls)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def turns(path: Path, **options: Any) -> tuple[Turn, ...]:
    (session,) = TextSessions(recording=path, **options).fitted_to(SERVER).sessions()
    return session.turns


def said(turn: Turn) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in turn.prompt]  # type: ignore[index, call-overload]


def test_a_call_that_goes_on_is_the_next_turn_behind_the_recorded_answer(tmp_path: Path) -> None:
    """In the order of their times, and without the one that repeats the one before.

    What was not answered and what was said then are one message.
    """
    sent = turns(write_session(tmp_path))

    opening = [("user", "Hi!"), ("assistant", "Hello, what is it?"), ("user", " And then?\n")]
    assert [said(turn) for turn in sent] == [
        opening[:1],
        opening,
        [*opening[:2], ("user", " And then?\nWell?")],
        [("user", "Another matter.")],
    ]
    assert not any(turn.continues for turn in sent)
    assert [turn.max_tokens for turn in sent] == [5, 1, 3, 1]


def test_behind_answers_of_ours_only_what_is_new_is_sent(tmp_path: Path) -> None:
    sent = turns(write_session(tmp_path), answers="ours")
    assert [(turn.continues, said(turn)) for turn in sent] == [
        (False, [("user", "Hi!")]),
        (True, [("user", " And then?\n")]),
        (True, [("user", "Well?")]),
        (False, [("user", "Another matter.")]),
    ]


def test_as_text_inputs_and_answers_follow_each_other(tmp_path: Path) -> None:
    system = tmp_path / "system.txt"
    system.write_text("Be brief.\n")
    sent = turns(write_session(tmp_path), prompt_form="text", system=system)
    assert [turn.prompt for turn in sent] == [
        "Be brief.\nHi!",
        "Be brief.\nHi!Hello, what is it? And then?\n",
        "Be brief.\nHi!Hello, what is it? And then?\nWell?",
        "Be brief.\nAnother matter.",
    ]


def test_a_system_prompt_comes_before_every_conversation_and_is_public(tmp_path: Path) -> None:
    system = tmp_path / "system.txt"
    system.write_text("Be brief.")
    workload = TextSessions(recording=write_session(tmp_path), system=system).fitted_to(SERVER)
    (session,) = workload.sessions()
    assert session.public_messages == 1
    assert [said(turn)[0] for turn in session.turns] == [("system", "Be brief.")] * 4


def test_times_between_calls_are_scaled(tmp_path: Path) -> None:
    sent = turns(write_session(tmp_path), think_scale=0.5)
    assert [turn.think_seconds for turn in sent] == pytest.approx([0, 1, 1.25, 0.25])


def test_the_length_of_answers_may_be_given(tmp_path: Path) -> None:
    sent = turns(write_session(tmp_path), output_tokens=Amount.uniform(3, 5))
    assert all(3 <= turn.max_tokens <= 5 for turn in sent)


def test_a_folder_has_a_session_in_each_file_and_empty_ones_do_not_count(tmp_path: Path) -> None:
    for name, calls in (("a", CALLS), ("b", []), ("c", CALLS[:1]), ("d", [(1.0, "", "Hm.")])):
        write_session(tmp_path, calls, name)
    workload = TextSessions(recording=tmp_path).fitted_to(SERVER)
    assert workload.num_sessions == 2
    assert [len(session.turns) for session in workload.sessions()] == [4, 1]
    assert TextSessions(recording=tmp_path, limit=1).fitted_to(SERVER).num_sessions == 1


def test_what_does_not_fit_is_refused_or_ends_its_session(tmp_path: Path) -> None:
    path = write_session(tmp_path, [(1, "x" * 40, "y" * 40), (2, "x" * 80, ""), (3, "x" * 400, "")])
    with pytest.raises(PromptTooLongError) as error:
        TextSessions(recording=path).fitted_to({"context_length": 60})
    assert str(error.value).startswith(f"a prompt of {path}, estimated, may be 110 tokens long")

    workload = TextSessions(recording=path, clip=True).fitted_to({"context_length": 60})

    assert workload.notes == ("does not fit into the context: 1 of 3 calls",)
    (session,) = workload.sessions()
    assert len(session.turns) == 2

    write_session(tmp_path, [(1, "x" * 400, "")], "b")
    assert TextSessions(recording=tmp_path, clip=True).fitted_to({"context_length": 60}).num_sessions == 1


def test_broken_lines_are_named_and_the_rest_runs(tmp_path: Path) -> None:
    path = write_session(tmp_path)
    path.write_text('{"timestamp": 1, "input": 3, "output": ""}\n' + path.read_text() + "{\n")
    with pytest.raises(TraceError, match=":1: 'input' is 3; a text is expected"):
        TextSessions(recording=path, strict=True).fitted_to(SERVER)

    workload = TextSessions(recording=path).fitted_to(SERVER)

    assert workload.notes[0] == f"left out: {path}:1: 'input' is 3; a text is expected"
    assert workload.notes[1].startswith(f"left out: {path}:7: damaged JSON")
    assert len(workload.notes) == 2


def test_a_folder_without_sessions_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no \.jsonl file"):
        TextSessions(recording=tmp_path).fitted_to(SERVER)
    write_session(tmp_path, [])
    with pytest.raises(TraceError, match="has no session that can be sent"):
        TextSessions(recording=tmp_path).fitted_to(SERVER)


def test_a_system_prompt_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    system = tmp_path / "system.txt"
    system.write_bytes(b"\xff\xfe")
    with pytest.raises(PrefixCacheClientError, match=r"system\.txt is no UTF-8 text"):
        TextSessions(recording=write_session(tmp_path), system=system).fitted_to(SERVER)
