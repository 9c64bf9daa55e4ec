"""How far a load is, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from prefixcache_client.command_line import load_progress
from prefixcache_client.command_line.load_progress import LoadProgress
from prefixcache_client.load.measurement import RequestResult


def result(ended: float, error: str | None = None) -> RequestResult:
    return RequestResult(
        session=0,
        turn=0,
        tenant=None,
        planned=0.0,
        sent=0.0,
        first_token=None,
        ended=ended,
        token_gaps=(),
        prompt_tokens=0,
        cached_tokens=None,
        output_tokens=0,
        error=error,
    )


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Console:
    made = Console(file=io.StringIO(), force_terminal=request.param, width=100)
    monkeypatch.setattr(load_progress, "console", lambda *, stderr: made)
    return made


def drawn(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


@pytest.mark.parametrize("ends_by", ["requests", "time", "itself"])
def test_answers_and_failures_are_counted_where_somebody_looks(screen: Console, ends_by: str) -> None:
    progress = LoadProgress(
        num_requests=3 if ends_by == "requests" else None,
        duration_seconds=10.0 if ends_by == "time" else None,
        to_stderr=False,
    )
    with progress:
        for one in (result(1.0), result(2.0, "429"), result(3.0)):
            progress.note(one)

    if screen.is_terminal:
        assert "2 answered, 1 failed" in drawn(screen)
    else:
        assert drawn(screen) == ""
