"""Step 3: hits are as long as they can be, and change no answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_client.doctor.finding import Verdict
from prefixcache_client.doctor.hits import Hit, Twins, check_hits, check_twins


@given(st.integers(1, 100), st.integers(0, 100))
def test_one_token_is_always_computed(length: int, common: int) -> None:
    expected = Hit("any", length, min(common, length), 0).num_expected_tokens

    assert expected == min(common, length - 1)
    assert check_hits([Hit("any", length, common, expected)], is_undisturbed=True).verdict is Verdict.HEALTHY


def test_a_block_too_few_is_a_fault() -> None:
    hits = [Hit("33 tokens again", 33, 33, 16), Hit("parting behind 31 tokens", 40, 31, 31)]

    finding = check_hits(hits, is_undisturbed=True)

    assert (finding.verdict, finding.pitfall) == (Verdict.FAULT, "lost-border-hit")
    assert "1 of 2 prompts" in finding.sentence
    assert finding.evidence["example_1"] == "33 tokens again: 16 of 32 tokens cached"


def test_who_is_disturbed_is_not_accused() -> None:
    finding = check_hits([Hit("again", 33, 33, 16)], is_undisturbed=False)

    assert (finding.verdict, finding.pitfall) == (Verdict.UNKNOWN, None)


def test_a_worker_that_shares_nothing_decides_nothing() -> None:
    assert check_hits([], is_undisturbed=True).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("difference", "verdict"), [(0.0, Verdict.HEALTHY), (0.009, Verdict.HEALTHY), (0.02, Verdict.FAULT)]
)
def test_answers_may_differ_by_rounding_alone(difference: float, verdict: Verdict) -> None:
    finding = check_twins([Twins("parting", 17, True, 0.0), Twins("parting", 18, True, difference)])

    assert finding.verdict is verdict
    assert finding.pitfall == ("scales-left-behind" if verdict is Verdict.FAULT else None)
    assert finding.evidence["largest_logprob_difference"] == difference


def test_answers_without_a_hit_tell_nothing() -> None:
    assert check_twins([Twins("parting", 0, False, 3.0)]).verdict is Verdict.UNKNOWN
