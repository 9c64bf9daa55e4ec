"""Hostile rules: what they cost, and that they harm nobody."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.tiny_loaded_model import constraint_compiler

from prefixcache_worker.constraint.trial import MAX_SECONDS
from prefixcache_worker.errors import InvalidRequestError

COMPILER = constraint_compiler()
USABLE = ("regex", "a+")


def chain(link: Callable[[dict[str, Any]], dict[str, Any]], length: int) -> str:
    """A schema whose definitions each refer to the next one."""
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": links | {f"d{length}": {"type": "integer"}}})


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


DEADLY = {
    "references one into the next": ("json_schema", chain(lambda ref: ref, 900)),
    "objects one in the other": ("json_schema", chain(lambda ref: {"type": "array", "items": ref}, 500)),
    "rules one into the next": (
        "grammar",
        "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(2000)) + 'r2000: "a"',
    ),
    "patterns that all hold": (
        "json_schema",
        json.dumps({"allOf": [{"pattern": f"a{i}"} for i in range(30)], "type": "string"}),
    ),
    "expressions that all match": (
        "grammar",
        "start: T\nT: " + " & ".join(f"/.*a.{{{i}}}b.*/" for i in range(20)),
    ),
}
"""Alone in the worker, each of these ends it or keeps a thread for minutes."""

REFUSED = {
    "deep text": ("json_schema", nested(5_000 // 4)),
    "deep expression": ("regex", "(" * 10_000 + "a" + ")" * 10_000),
    "deep grammar": ("grammar", "start: " + "(" * 10_000 + '"a"' + ")" * 10_000),
    "loop of references": (
        "json_schema",
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
    ),
    "not a text": ("json_schema", '{"const": "\\ud800"}'),
    "all of everything": (
        "json_schema",
        json.dumps(
            {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": True}} for j in range(8)]} for i in range(8)]}
        ),
    ),
}

TAKEN = {
    "enum of a thousand": ("json_schema", json.dumps({"enum": [f"value {i}" for i in range(1_000)]})),
    "many stars": ("regex", "(a*b*)*" * 1_000),
    "many question marks": ("regex", "a?" * 3_000 + "a" * 3_000),
    "ambiguous": ("grammar", 'start: e\ne: e e | e e e | "a" |'),
    "many nothings": ("grammar", "start: " + "n " * 900 + '\nn: | "a"'),
    "repetition of repetitions": ("regex", "((a{0,1000}){0,1000}b){0,1000}"),
    "long look back": ("regex", ".*a.{1000}"),
    "huge bounds": ("json_schema", '{"type": "array", "items": true, "minItems": 1000000000}'),
    "tree": ("json_schema", '{"type": "object", "properties": {"child": {"$ref": "#"}}}'),
}


def milliseconds(kind: str, text: str) -> tuple[float, str]:
    """How long a rule kept this process computing, and why it was refused."""
    before, reason = time.thread_time(), ""
    try:
        COMPILER.compile(kind, text, field_name="constraint")
    except InvalidRequestError as error:
        reason = str(error)
    return 1000 * (time.thread_time() - before), reason


@pytest.mark.parametrize("name", DEADLY)
def test_a_deadly_rule_is_refused_and_the_next_one_taken(name: str):
    cost, reason = milliseconds(*DEADLY[name])
    assert "too much time or memory to compile, or is nested too deeply" in reason
    assert cost < 1000 * MAX_SECONDS, "it was compiled here"
    assert milliseconds(*USABLE)[1] == ""


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_rule_is_refused(name: str):
    cost, reason = milliseconds(*REFUSED[name])
    assert reason.startswith("constraint: cannot be used: ")
    assert len(reason) < 300
    assert cost < 1000 * MAX_SECONDS


@pytest.mark.parametrize("name", TAKEN)
def test_a_large_rule_costs_little_from_token_to_token(name: str):
    cost, reason = milliseconds(*TAKEN[name])
    assert reason == ""
    assert cost < 1000 * MAX_SECONDS
    state = COMPILER.compile(*TAKEN[name], field_name="constraint").start()
    choice = random.Random(1)
    for _ in range(60):
        ids = np.flatnonzero(np.unpackbits(state.allowed_bits.view(np.uint8), bitorder="little")).tolist()
        before = time.thread_time()
        state.accept(choice.choice(ids))
        assert time.thread_time() - before < MAX_SECONDS / 2
        if state.error or state.is_complete:
            break


def test_a_trial_process_that_has_died_is_replaced():
    trial = constraint_compiler()._trial
    trial.check(*USABLE)
    trial._running.process.kill()
    trial._running.process.wait()
    trial.check(*USABLE)


def test_threads_may_try_rules_at_once():
    trial, failures = constraint_compiler()._trial, []

    def check() -> None:
        try:
            for _ in range(20):
                trial.check(*USABLE)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_process_ends_with_the_compiler():
    compiler = constraint_compiler()
    compiler.compile(*USABLE, field_name="constraint")
    process_id = compiler._trial._running.process.pid
    os.kill(process_id, 0)
    del compiler
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
