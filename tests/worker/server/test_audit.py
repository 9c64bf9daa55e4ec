"""`--audit`: what the worker says of itself when it has stopped."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from support.served_worker import greedy_request, served
from support.tiny_loaded_model import loaded

from prefixcache_worker import __main__ as program
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import AuditError
from prefixcache_worker.model.scripted_model import ScriptedModel


def scripted() -> ScriptedModel:
    return ScriptedModel([7] * 100, vocabulary_size=260, eos_token_id=2)


async def test_the_audit_counts_what_has_ended(caplog: pytest.LogCaptureFixture):
    async with served(loaded(scripted())) as worker:
        await worker.answer(greedy_request(list(range(3, 40)), 5))
        loop = worker.worker.engine_loop
    with caplog.at_level(logging.INFO):
        loop.audit()
    assert "audit: nothing is left of 1 requests" in caplog.text


async def test_the_audit_finds_a_reference_that_nobody_holds(caplog: pytest.LogCaptureFixture):
    async with served(loaded(scripted())) as worker:
        await worker.answer(greedy_request(list(range(3, 40)), 5))
        loop = worker.worker.engine_loop
        await loop.call(lambda engine: engine.cache._pool.allocate(1))
    with pytest.raises(AuditError, match=r"^the audit found what must not be, see the log"):
        loop.audit()
    assert "AssertionError" in caplog.text


def test_a_worker_whose_audit_fails_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def serve(config: WorkerConfig) -> None:
        assert config.audit
        raise AuditError("the audit found what must not be")

    monkeypatch.setattr(program, "_serve", serve)
    assert program.main(["--audit"]) == 1
    assert capsys.readouterr().err == "prefixcache serve: the audit found what must not be\n"


def test_an_audit_that_could_find_nothing_is_refused():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "prefixcache_worker", "--audit"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("prefixcache serve: --audit: python -O leaves out what it checks")
