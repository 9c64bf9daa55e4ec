"""explain, events and reset: from the clients and from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_worker import FakeWorker

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_client import (
    AsyncClient,
    BlocksStored,
    CacheCleared,
    Client,
    MissCause,
    OutOfRangeError,
    StateComplete,
)

Run = Callable[..., int]

EXPLANATION = cache_pb2.ExplainResponse(
    num_prompt_tokens=1400,
    num_cached_tokens=1360,
    cause=cache_pb2.MISS_CAUSE_EVICTED,
    divergence=cache_pb2.Divergence(
        position=1360,
        prompt_token=7,
        cached_token=8,
        prompt_preview="the\n[bold]dog",
        cached_preview="the\x1bcat",
    ),
    summary="1360 of 1400 prompt tokens are cached: send it again",
)
EVENTS = [
    cache_pb2.WatchEventsResponse(
        sequence_number=4,
        stored=cache_pb2.BlocksStored(
            parent_key=b"\0", block_keys=[b"\1\xab"], token_ids=[5, 6], public=True
        ),
    ),
    cache_pb2.WatchEventsResponse(sequence_number=4, state_complete=cache_pb2.StateComplete()),
    cache_pb2.WatchEventsResponse(
        sequence_number=5, removed=cache_pb2.BlocksRemoved(block_keys=[b"\1\xab", b"\2"], cause="evicted")
    ),
    cache_pb2.WatchEventsResponse(sequence_number=6, cleared=cache_pb2.CacheCleared()),
]


async def test_both_clients_explain(worker: FakeWorker) -> None:
    worker.explanation.CopyFrom(EXPLANATION)
    with Client(worker.address) as client:
        explanation = client.explain("a prompt", public_tokens=3, salt="s")
    async with AsyncClient(worker.address) as client:
        assert await client.explain("a prompt", public_tokens=3, salt="s") == explanation
    assert explanation.cause is MissCause.EVICTED
    assert explanation.divergence is not None
    assert (explanation.num_cached_tokens, explanation.divergence.cached_token) == (1360, 8)
    cache = inference_pb2.CacheOptions(public_tokens=3, salt="s")
    assert worker.explain_requests == [cache_pb2.ExplainRequest(text="a prompt", cache=cache)] * 2


async def test_every_kind_of_prompt_can_be_explained(worker: FakeWorker) -> None:
    with Client(worker.address) as client:
        client.explain([1, 2])
        client.explain([{"role": "user", "content": "hi"}], public_messages=1)
        with pytest.raises(ValueError, match="exclude each other"):
            client.explain("a", public_tokens=1, public_messages=1)
    ids, chat = worker.explain_requests
    assert list(ids.token_ids.ids) == [1, 2]
    assert chat.chat.messages[0].content == "hi"
    assert chat.cache.public_messages == 1


async def test_both_clients_watch(worker: FakeWorker) -> None:
    worker.events = list(EVENTS)
    with Client(worker.address) as client:
        events = list(client.watch_events())
        assert list(client.watch_events(from_sequence_number=5)) == events[2:]
        with pytest.raises(OutOfRangeError, match="event 7 is not there"):
            list(client.watch_events(from_sequence_number=7))
    async with AsyncClient(worker.address) as client:
        assert [event async for event in client.watch_events(from_sequence_number=0)] == events
    assert [event.sequence_number for event in events] == [4, 4, 5, 6]
    assert isinstance(events[0], BlocksStored)
    assert isinstance(events[1], StateComplete)
    assert isinstance(events[3], CacheCleared)


async def test_both_clients_reset(worker: FakeWorker) -> None:
    with Client(worker.address) as client:
        client.reset()
    async with AsyncClient(worker.address) as client:
        await client.reset()
    assert worker.num_resets == 2


def test_an_explanation_is_printed_readably(
    run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.explanation.CopyFrom(EXPLANATION)
    worker.explanation.held_by_tenant = "acme"
    assert run("explain", "the dog") == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "cached     1,360 of 1,400 tokens, 97.1 %",
        "cause      evicted",
        "held by    acme",
        "prompt     …the [bold]dog…",
        "cache has  …the\ufffdcat…",
        "           1360 of 1400 prompt tokens are cached: send it again",
    ]


def test_prompts_come_from_arguments_input_and_files(
    run: Run, worker: FakeWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, chat = tmp_path / "text", tmp_path / "chat.json"
    text.write_text("from a file\n")
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    chat.write_text(json.dumps(turns))
    assert run("explain", stdin="from input") == 0
    assert run("explain", "--file", str(text), "--salt", "s", "--public-tokens", "2") == 0
    assert run("explain", "--chat", str(chat)) == 0
    assert run("explain", "hi", "--system", "be brief", "--public-system", "--json", "-") == 0
    from_input, from_file, conversation, with_system = worker.explain_requests
    assert from_input.text == "from input"
    assert (from_file.text, from_file.cache.salt, from_file.cache.public_tokens) == ("from a file\n", "s", 2)
    assert conversation.chat == with_system.chat
    assert with_system.cache.public_messages == 1
    assert '"num_prompt_tokens": 0' in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", '{"role": "user"}', '[{"role": "user"}]', "[]"])
def test_a_file_that_is_no_conversation_is_one_sentence(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(content)
    assert run("explain", "--chat", str(path)) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"prefixcache: {path} is no JSON list")
    assert error.count("\n") == 1


@pytest.mark.parametrize("argv", [["--public-system"], ["--system", "a", "--chat", "f"]])
def test_options_that_do_not_go_together_are_refused(run: Run, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run("explain", *argv)
    assert refused.value.code == 2


def test_events_are_lines(run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]) -> None:
    worker.events = list(EVENTS)
    assert run("events") == 0
    assert capsys.readouterr().out.splitlines() == [
        "4  stored   1 public block, 2 tokens, the last is 01ab",
        "4  this was all that was cached; what follows are changes",
        "5  removed  2 blocks, evicted",
        "6  cleared",
    ]
    assert run("events", "--from", "5", "--json-lines") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "removed", "sequence_number": 5, "block_keys": ["01ab", "02"], "cause": "evicted"},
        {"event": "cleared", "sequence_number": 6},
    ]
    assert run("events", "--from", "9") == 1
    assert "event 9 is not there" in capsys.readouterr().err


def test_reset_wants_a_yes(run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run("reset")
    assert (refused.value.code, worker.num_resets) == (2, 0)
    assert "say --yes" in capsys.readouterr().err
    assert run("reset", "--yes") == 0
    assert worker.num_resets == 1
    assert "has forgotten" in capsys.readouterr().out
