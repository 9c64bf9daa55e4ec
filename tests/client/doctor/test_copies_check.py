"""Step 4: copies that grow with the answer, and fills in the hot path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doctor_figures import BLOCK_SIZE, TOKEN_BYTES, accused, profile

from prefixcache_client.diagnosis_answers import StepProfile
from prefixcache_client.doctor.copies import CopyFigures, ProfiledAnswer, check_copies
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.profiled_answers import ProfiledAnswers

BLOCK_BYTES = TOKEN_BYTES * BLOCK_SIZE


def checked(
    short: StepProfile | None = None,
    long: StepProfile | None = None,
    beginnings: StepProfile | None = None,
    attention: str = "native",
    is_alone: bool = True,
    is_sparse: bool = False,
) -> list[Finding]:
    return check_copies(
        CopyFigures(
            answers=(
                ProfiledAnswer(74, short or profile()),
                ProfiledAnswer(778, long or profile()),
            ),
            beginnings=beginnings or profile(),
            attention=attention,
            is_sparse=is_sparse,
            token_bytes=TOKEN_BYTES,
            block_size=BLOCK_SIZE,
            read_bytes_per_second=1e9,
            is_alone=is_alone,
        )
    )


def copying(bytes_per_token: float, **fields: Any) -> StepProfile:
    return profile(copied_bytes=int(20 * bytes_per_token), **fields)


def test_the_figures_of_a_healthy_worker() -> None:
    copies, fills, time = checked()

    assert {finding.verdict for finding in (copies, fills, time)} == {Verdict.HEALTHY}
    assert copies.evidence["copies_per_token"] == 5
    assert copies.evidence["copied_bytes_per_token"] == 300
    assert copies.evidence["growth_bytes_per_row"] == 0
    assert time.evidence["attention_share"] == pytest.approx(0.25)
    assert time.evidence["bandwidth_share"] == pytest.approx((2_048_000 + 20_000_000) / 0.2 / 1e9)


@given(st.floats(0.6, 4.0), st.integers(0, 10**6))
def test_copies_of_all_rows_grow(share: float, constant: int) -> None:
    """Every row is copied, or the half of it that keys are, and something beside it."""
    short, long = (copying(constant + share * TOKEN_BYTES * rows) for rows in (74, 778))

    assert accused(checked(short, long)) == {"copies": "growing-copy"}


@given(st.integers(0, 10**7), st.integers(-50, 50))
def test_copies_that_do_not_grow_are_healthy(constant: int, jitter: int) -> None:
    assert accused(checked(copying(constant), copying(max(0, constant + 100 * jitter)))) == {}


def test_attention_by_torch_copies_by_design() -> None:
    findings = checked(copying(74 * TOKEN_BYTES), copying(778 * TOKEN_BYTES), attention="torch")

    assert findings[0].verdict is Verdict.UNKNOWN
    assert accused(findings) == {}


def test_a_worker_that_chooses_its_blocks_copies_what_it_chooses_by() -> None:
    short, long = (copying(TOKEN_BYTES * rows) for rows in (74, 778))

    assert checked(short, long, is_sparse=True)[0].verdict is Verdict.UNKNOWN


def test_fills_are_no_copies() -> None:
    long = copying(778 * TOKEN_BYTES, filled_bytes=20 * 778 * TOKEN_BYTES)

    assert accused(checked(long=long)) == {"fills": "zero-in-hot-path"}


@pytest.mark.parametrize(("blocks", "is_wrong"), [(0.1, False), (0.4, False), (0.6, True), (40, True)])
def test_fills_where_requests_begin(blocks: float, is_wrong: bool) -> None:
    filled = int(20 * blocks * BLOCK_BYTES)

    findings = checked(beginnings=profile(copied_bytes=filled, filled_bytes=filled))

    assert accused(findings) == ({"fills": "zero-in-hot-path"} if is_wrong else {})
    assert findings[1].evidence["filled_bytes_per_step_where_requests_begin"] == filled / 20


def test_fills_beside_the_requests_of_others_decide_nothing() -> None:
    findings = checked(beginnings=profile(filled_bytes=20 * BLOCK_BYTES), is_alone=False)

    assert findings[1].verdict is Verdict.UNKNOWN
    assert checked(is_alone=False)[1].verdict is Verdict.HEALTHY


def steps(num_steps: int, num_tokens: int) -> StepProfile:
    return profile(num_steps=num_steps, num_tokens=num_tokens)


@pytest.mark.parametrize(
    ("decode", "beginnings", "is_alone"), [(20, 40, True), (21, 40, False), (20, 41, False)]
)
def test_steps_with_more_tokens_than_were_sent_are_those_of_others(
    decode: int, beginnings: int, is_alone: bool
) -> None:
    """A beginning computes 8 tokens of a prompt and 2 of its answer in 3 steps."""
    answers = (ProfiledAnswer(74, steps(20, 20)), ProfiledAnswer(778, steps(20, decode)))

    profiled = ProfiledAnswers(answers=answers, beginnings=steps(12, beginnings), trace=b"")

    assert profiled.is_alone is is_alone


def test_no_time_is_no_share() -> None:
    assert checked(long=profile(seconds=0.0))[2].verdict is Verdict.UNKNOWN
