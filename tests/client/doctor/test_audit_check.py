"""Step 3: each kind of wrong rows has its own name, and right ones have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.doctor_figures import accused, broken, step

from prefixcache_client.diagnosis_answers import StepFault, StepFinding, StepRecord
from prefixcache_client.doctor.audit import AuditFigures, check_audit
from prefixcache_client.doctor.finding import Verdict
from prefixcache_client.doctor.hits import Hit, Twins
from prefixcache_client.doctor.releases import End

MORE = StepFault.ROWS_READ_MORE
SHARED = step(rows_needed=200, rows_read=220, rows_unshared=600)
HEALTHY = AuditFigures(
    steps=(SHARED,) * 5,
    hits=(Hit("again", 17, 17, 16), Hit("one more", 18, 17, 17)),
    ends=(End("a short answer", 0, 0),) * 3,
    twins=(Twins("parting", 17, True, 0.0),),
    index_findings=(),
    num_nodes=3,
    num_preemptions=0,
    num_evicted=0,
    is_alone=True,
)


def named(**fields: Any) -> dict[str, str | None]:
    return accused(check_audit(replace(HEALTHY, **fields)))


def test_a_healthy_worker_is_not_accused() -> None:
    findings = check_audit(HEALTHY)

    assert {finding.verdict for finding in findings} == {Verdict.HEALTHY}
    assert all(finding.step == 3 for finding in findings)


@pytest.mark.parametrize(
    ("findings", "pitfall"),
    [
        ([broken(MORE, expected=40, found=41), broken(MORE, expected=100, found=101)], "extra-row"),
        ([broken(MORE, expected=40, found=100)], "pad-to-longest"),
        ([broken(MORE, expected=99, found=100)] * 3, "pad-to-longest"),  # of a batch in which one is ahead
        ([broken(MORE, expected=40, found=140)], "stale-offset"),
        ([broken(StepFault.START, expected=40, found=57)], "stale-offset"),
        ([broken(StepFault.FOREIGN_ROWS, expected=40, found=57)], "stale-offset"),
        ([broken(StepFault.COPY)], "scales-left-behind"),
        ([broken(StepFault.COUNTS)], "leaked-reference"),
    ],
)
def test_what_is_wrong_with_rows_has_a_name(findings: list[StepFinding], pitfall: str) -> None:
    assert named(steps=(SHARED,) * 5 + (step(*findings),) * 4) == {"rows": pitfall}


def test_an_extra_row_in_a_batch_whose_longest_has_one_more() -> None:
    """Once it looks like padding; in all other steps it does not."""
    steps = [step(broken(MORE, expected=n, found=n + 1), longest=100) for n in range(90, 101)]

    assert named(steps=(*steps, *(SHARED,) * 5)) == {"rows": "extra-row"}


@given(
    st.lists(st.integers(2, 500), min_size=2, max_size=5, unique=True),
    st.integers(1, 400),
)
def test_offsets_that_add_up_are_no_padding(lengths: list[int], first: int) -> None:
    """Each sequence reads the rows of all before it too."""
    findings, before = [], first + 1
    for length in lengths:
        findings.append(broken(MORE, expected=length, found=length + before))
        before += length
    record = step(*findings, longest=max(first, *lengths))
    assume(sum(each.found == record.longest for each in findings) * 2 < len(findings))

    assert named(steps=(record,) * 3 + (SHARED,) * 5) == {"rows": "stale-offset"}


def test_reads_that_are_not_shared() -> None:
    unshared = replace(SHARED, rows_read=600)

    assert named(steps=(unshared,) * 5) == {"shared reads": "unshared-reads"}


def test_too_few_rows_to_share_decide_nothing() -> None:
    findings = check_audit(replace(HEALTHY, steps=(replace(SHARED, rows_read=600),) * 2))

    assert [each.verdict for each in findings if each.name == "shared reads"] == [Verdict.UNKNOWN]
    assert accused(findings) == {}


def test_many_short_common_runs_that_do_not_pay_decide_nothing() -> None:
    short = step(num_sequences=4, rows_needed=60, rows_read=180, rows_unshared=180)  # 40 rows in common

    findings = check_audit(replace(HEALTHY, steps=(short,) * 100))

    assert [each.verdict for each in findings if each.name == "shared reads"] == [Verdict.UNKNOWN]


def test_steps_that_read_wrong_rows_do_not_tell_about_sharing() -> None:
    steps = [replace(SHARED, rows_read=900, findings=(broken(MORE, found=140),))] * 5

    assert named(steps=tuple(steps)) == {"rows": "stale-offset"}


@pytest.mark.parametrize("steps", [(), (replace(SHARED, findings=()),) * 5])
def test_no_steps_are_no_proof(steps: tuple[StepRecord, ...]) -> None:
    [rows] = [each for each in check_audit(replace(HEALTHY, steps=steps)) if each.name == "rows"]

    assert rows.verdict is (Verdict.HEALTHY if steps else Verdict.UNKNOWN)


def test_broken_counts_are_called_what_the_ends_show() -> None:
    gauge = [End("a request that was cancelled", 0, 1)] * 3
    counts = (SHARED,) * 5 + (step(broken(StepFault.COUNTS)),)

    assert named(steps=counts, ends=tuple(gauge)) == {"rows": "drifting-gauge", "gauges": "drifting-gauge"}


def test_broken_invariants_are_told() -> None:
    findings = check_audit(replace(HEALTHY, index_findings=("block 3 has 2 references, and 1 holds it",)))

    assert accused(findings) == {"indexes": "leaked-reference"}
    assert "block 3 has 2 references" in findings[-1].sentence
