"""Step 3: what is left behind is a leak when it grows, and late when it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doctor_figures import accused

from prefixcache_client.doctor.finding import Verdict
from prefixcache_client.doctor.releases import End, check_releases


def ends(*blocks: int) -> list[End]:
    return [End("an answer", num_blocks, 0) for num_blocks in blocks]


@given(st.integers(0, 3), st.lists(st.integers(1, 5), min_size=2, max_size=10))
def test_blocks_that_grow_with_every_end_are_leaked(num_clean: int, growth: list[int]) -> None:
    blocks = [0] * num_clean + [sum(growth[: i + 1]) for i in range(len(growth))]

    assert accused(check_releases(ends(*blocks), is_alone=True)) == {"release": "leaked-reference"}


@pytest.mark.parametrize("blocks", [[3, 4, 4, 10, 7, 2, 2], [2, 2, 2, 7, 2], [0, 0, 5], [1, 2, 3, 0]])
def test_blocks_that_come_back_were_freed_late(blocks: list[int]) -> None:
    assert accused(check_releases(ends(*blocks), is_alone=True)) == {"release": "late-free"}


def test_a_gauge_that_stays_up_drifts() -> None:
    left = [End("a short answer", 0, 0), End("a request that was cancelled", 0, 1)]

    findings = check_releases(left, is_alone=True)

    assert accused(findings) == {"gauges": "drifting-gauge"}
    assert "a request that was cancelled" in findings[1].sentence


def test_nothing_left_is_healthy() -> None:
    findings = check_releases(ends(0, 0, 0), is_alone=True)

    assert [finding.verdict for finding in findings] == [Verdict.HEALTHY] * 2


def test_what_others_hold_is_not_judged() -> None:
    [finding] = check_releases([End("an answer", 9, 4)], is_alone=False)

    assert finding.verdict is Verdict.UNKNOWN
