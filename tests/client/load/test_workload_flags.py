"""Settings of workloads as flags, and what holds for every workload."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from prefixcache_client.load.workloads import (
    Agents,
    Amount,
    Chat,
    RecordedTrace,
    SharedPrefix,
    Tenants,
    TextSessions,
)
from prefixcache_client.load.workloads.flags import add_workload_flags, workload_from

KINDS: list[type[Any]] = [SharedPrefix, Chat, Agents, Tenants, RecordedTrace, TextSessions]
REQUIRED = {RecordedTrace: ["--trace", "t.jsonl"], TextSessions: ["--recording", "sessions"]}


def parsed(kind: type[Any], *argv: str) -> Any:
    parser = argparse.ArgumentParser()
    add_workload_flags(parser, kind)
    return workload_from(parser.parse_args([*REQUIRED.get(kind, []), *argv]), kind, seed=7)


@pytest.mark.parametrize("kind", KINDS)
def test_without_flags_it_is_the_workload_of_the_defaults(kind: type[Any]) -> None:
    required = {RecordedTrace: {"trace": Path("t.jsonl")}, TextSessions: {"recording": Path("sessions")}}
    assert parsed(kind) == kind(seed=7, **required.get(kind, {}))


def test_each_flag_sets_its_field() -> None:
    flags = "--groups 3 --prefix-tokens 64~0.5 --diverging 0.25 --private --prompt-form text --users 5"
    assert parsed(SharedPrefix, *flags.split()) == SharedPrefix(
        groups=3,
        prefix_tokens=Amount.lognormal(64, 0.5),
        diverging=0.25,
        private=True,
        prompt_form="text",
        users=5,
        seed=7,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_description_makes_the_workload_again(kind: type[Any]) -> None:
    """Fed back as flags. Truth values are flags without one."""
    description = parsed(kind).description
    again = []
    for name, value in description.items():
        if name not in ("kind", "seed", "vocabulary_size", "block_size") and not isinstance(value, bool):
            again += [f"--{name.replace('_', '-')}", str(value)]
    assert parsed(kind, *again) == parsed(kind)
    assert json.loads(json.dumps(description)) == description


@pytest.mark.parametrize(
    ("kind", "argv", "complaint"),
    [
        (SharedPrefix, ["--groups", "0"], "must be at least 1, got 0"),
        (SharedPrefix, ["--groups", "few"], "must be an integer, got 'few'"),
        (SharedPrefix, ["--prefix-tokens", "0..5"], "must be at least 1, got 0..5"),
        (SharedPrefix, ["--prefix-tokens", "long"], "must be a number such as 64, a range"),
        (SharedPrefix, ["--prompt-form", "speech"], "invalid choice"),
        (Tenants, ["--mean-rate", "0"], "must be at least 1e-06, got 0.0"),
        (Tenants, ["--mean-rate", "nan"], "must be at least 1e-06, got nan"),
        (RecordedTrace, ["--length-scale", "x"], "must be a number, got 'x'"),
    ],
)
def test_a_wrong_value_is_bad_usage(
    kind: type[Any], argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parsed(kind, *argv)
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_recording_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_workload_flags(parser, RecordedTrace)
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "required: --trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": 0}, "groups must be at least 1, got 0"),
        ({"suffix_tokens": Amount.fixed(0)}, "suffix_tokens must be at least 1, got 0"),
        ({"diverging": 1.5}, "diverging is a share from 0 to 1, got 1.5"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SharedPrefix(**settings)


def digest(workload: Any) -> str:
    sessions = [*workload.warm_up(), *islice(workload.sessions(), 40)]
    return hashlib.sha256(repr(sessions).encode()).hexdigest()


MADE_UP: list[Any] = [
    SharedPrefix(groups=2, diverging=0.5, prefix_tokens=Amount.uniform(20, 90)),
    Chat(turns=Amount.uniform(1, 4)),
    Agents(prompt_form="messages"),
    Tenants(),
]


def test_the_same_seed_makes_the_same_in_any_process_and_another_one_another() -> None:
    here = [digest(workload) for workload in MADE_UP]
    assert here == [digest(workload) for workload in MADE_UP]
    program = "from test_workload_flags import MADE_UP, digest; print([digest(w) for w in MADE_UP])"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert elsewhere.stdout.strip() == repr(here)
    other_seeds = [type(workload)(seed=1) for workload in MADE_UP]
    assert all(digest(one) != digest(type(one)()) for one in other_seeds)
