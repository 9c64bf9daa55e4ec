"""Two reports compared, and reports read back from their files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixcache_client.command_line.output import write_json
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.fixed_answers import FixedAnswers
from prefixcache_client.doctor.report import Report, ReportError, load_report
from prefixcache_client.doctor.verification import verify

FAULT = Finding(
    step=4, name="copies", verdict=Verdict.FAULT, sentence="It grows.", evidence={"growth": 1.5, "n": 2},
    pitfall="growing-copy", advice="Look.",
)  # fmt: skip
REPORT = Report(
    model="m",
    build="b",
    settings={"block-size": "16", "address": "127.0.0.1:1"},
    machine={"cores": "2"},
    findings=[FAULT],
    answers=FixedAnswers(
        texts={"a": "one", "b": "two"}, first_token_seconds=[0.4, 0.5, 0.6], token_seconds=[0.1, 0.12, 0.13]
    ),
    is_alone=True,
)
FIXED = replace(
    REPORT,
    settings={"block-size": "16", "address": "127.0.0.1:2"},
    findings=[],
    answers=replace(REPORT.answers, token_seconds=[0.03, 0.04, 0.05]),
)


def test_a_fix_that_holds() -> None:
    verification = verify(REPORT, FIXED)

    assert verification.holds
    assert (verification.gone, verification.new) == (["growing-copy"], [])
    assert (verification.changes, verification.other_texts, verification.num_texts) == ([], [], 2)
    first, further = verification.speeds
    assert (first.times_as_fast, first.is_apart) == (1, False)
    assert (further.before, further.after, further.is_apart) == (0.12, 0.04, True)
    assert further.times_as_fast == pytest.approx(3)


def test_ranges_that_meet_are_not_apart() -> None:
    slower = replace(REPORT, answers=replace(REPORT.answers, token_seconds=[0.13, 0.2, 0.3]))

    assert not verify(REPORT, slower).speeds[1].is_apart


def test_single_rounds_have_no_range_to_tell_them_apart_by() -> None:
    quick = [
        replace(each, answers=replace(each.answers, token_seconds=[seconds]))
        for each, seconds in ((REPORT, 0.12), (FIXED, 0.04))
    ]

    assert not verify(*quick).speeds[1].is_apart


def test_another_text_is_no_fix() -> None:
    answers = replace(FIXED.answers, texts={"a": "one", "b": "three", "c": "new"})

    verification = verify(REPORT, replace(FIXED, answers=answers))

    assert not verification.holds
    assert verification.other_texts == [("b", "two", "three")]


def test_something_new_is_no_fix() -> None:
    new = replace(FAULT, pitfall="late-free")

    verification = verify(REPORT, replace(FIXED, findings=[new]))

    assert (verification.holds, verification.new) == (False, ["late-free"])


def test_what_differs_beside_the_code_is_told() -> None:
    verification = verify(REPORT, replace(FIXED, settings={"block-size": "32"}, build="c"))

    assert verification.changes == [("block-size", "16", "32"), ("build", "b", "c")]


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    write_json(REPORT, str(tmp_path / "report.json"))

    assert load_report(str(tmp_path / "report.json")) == REPORT


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("{", "is no report of prefixcache doctor"),
        ("[]", "is no report of prefixcache doctor; write one with --json FILE"),
        ({"format": "other"}, "is no report"),
        ({"answers": {}}, "is a damaged report: KeyError at 'texts'"),
        ({"answers": {"texts": {}, "first_token_seconds": [], "token_seconds": [1]}}, "is a damaged report"),
        ({"answers": {"texts": {}, "first_token_seconds": [0], "token_seconds": [1]}}, "is a damaged report"),
        ({"findings": [{"verdict": "ill"}]}, "is a damaged report"),
        ({"findings": 3}, "is a damaged report"),
        ({"settings": []}, "is a damaged report"),
    ],
)
def test_other_files_are_refused(change: Any, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(REPORT, str(path))
    text = change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change)
    path.write_text(text)

    with pytest.raises(ReportError, match=sentence) as caught:
        load_report(str(path))
    assert str(path) in str(caught.value)
