"""Constraints as messages: what is taken, what is refused, and what comes back."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import grpc
import pytest
from support.served_worker import DEADLINE_SECONDS, greedy_request, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder
from support.validated_requests import checked, with_ids

from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.off_loop import LONG_MESSAGE_BYTES


def constrained(**rule: str) -> pb.GenerateRequest:
    return with_ids(constraint=pb.Constraint(**rule))


@pytest.mark.parametrize(
    ("rule", "field_name", "sentence"),
    [
        ({}, "constraint", "has no rule"),
        ({"json_schema": ""}, "constraint.json_schema", "cannot be used: "),
        ({"json_schema": '{"type":'}, "constraint.json_schema", "cannot be used: "),
        ({"json_schema": "[1]"}, "constraint.json_schema", "object schema"),
        ({"json_schema": '{"$ref": "#/$defs/gone"}'}, "constraint.json_schema", "does not exist"),
        ({"json_schema": '{"$ref": "http://127.0.0.1/a"}'}, "constraint.json_schema", "does not fetch"),
        ({"json_schema": '{"$ref": "#"}'}, "constraint.json_schema", "no token can come first"),
        ({"json_schema": '{"not": {}}'}, "constraint.json_schema", "Unimplemented"),
        (
            {"json_schema": '{"type": "number", "minimum": 2, "maximum": 1}'},
            "constraint.json_schema",
            "Unsatisfiable",
        ),
        ({"regex": "(a"}, "constraint.regex", "invalid regex"),
        ({"regex": r"(a)\1"}, "constraint.regex", "invalid regex"),
        ({"regex": ""}, "constraint.regex", "empty answer"),
        ({"regex": r"[^\s\S]"}, "constraint.regex", "no token can come first"),
        ({"grammar": 'begin: "a"'}, "constraint.grammar", "no start rule"),
        ({"grammar": "start: other"}, "constraint.grammar", "unknown name"),
        ({"grammar": "start: <|gone|>"}, "constraint.grammar", "unknown special token"),
        ({"grammar": "start: start"}, "constraint.grammar", "no token can come first"),
        ({"regex": "a" * 70_000}, "constraint.regex", "70000 bytes"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_used_is_refused_by_name(rule: dict[str, str], field_name: str, sentence: str):
    with pytest.raises(InvalidRequestError, match=re.escape(sentence)) as caught:
        checked(constrained(**rule))
    assert caught.value.field_name == field_name
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_without_a_constraint_there_is_none():
    assert checked(with_ids()).constraint is None
    assert checked(constrained(regex="a")).constraint is not None


def is_yes_or_no(text: str) -> bool:
    return json.loads(text) in ("yes", "no")


def is_a_plate(text: str) -> bool:
    return re.fullmatch("[a-c]{3}-[0-9]+x", text) is not None


def is_balanced(text: str) -> bool:
    return text.endswith(".") and text.count("(") == text.count(")") > 0


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ({"json_schema": '{"enum": ["yes", "no"]}'}, is_yes_or_no),
        ({"regex": "[a-c]{3}-[0-9]+x"}, is_a_plate),
        ({"grammar": 'start: pair+ "."\npair: "(" pair? ")"'}, is_balanced),
    ],
    ids=["json_schema", "regex", "grammar"],
)
async def test_answers_follow_the_rule(rule: dict[str, str], holds: Any):
    message = constrained(**rule)
    message.sampling.seed = 5
    async with served(loaded(tiny_decoder(vocabulary_size=300))) as worker:
        answer = await worker.answer(message)
    assert answer.finish_reason == pb.FINISH_REASON_STOP
    assert holds(answer.text), answer.text


async def test_nobody_without_a_rule_waits_for_one(monkeypatch: pytest.MonkeyPatch):
    async with served(loaded(tiny_decoder(vocabulary_size=300))) as worker:
        tried, may_end = threading.Semaphore(0), threading.Event()

        def check(kind: str, text: str) -> None:
            tried.release()
            assert may_end.wait(DEADLINE_SECONDS)

        monkeypatch.setattr(worker.worker.model.constraints._trial, "check", check)
        slow = [asyncio.ensure_future(worker.answer(constrained(regex="[ab]c"))) for _ in range(20)]
        assert await asyncio.to_thread(tried.acquire, timeout=DEADLINE_SECONDS)
        long_prompt = "x" * (2 * LONG_MESSAGE_BYTES)
        assert (
            await worker.refusal(pb.GenerateRequest(text=long_prompt))
        ).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await worker.answer(greedy_request([5, 6], 3))).completion.usage.completion_tokens == 3
        assert not any(call.done() for call in slow)
        may_end.set()
        assert {answer.text for answer in await asyncio.gather(*slow)} <= {"ac", "bc"}
