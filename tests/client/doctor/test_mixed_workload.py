"""The doctor tells its own load from that of others by the worker's counters."""

from __future__ import annotations

import pytest
from support.doctor_figures import stats

from prefixcache_client.doctor.mixed_workload import Sent

SENT = Sent(requests=3, prompt_tokens=40, least_generated_tokens=10, most_generated_tokens=30)
BEFORE = stats(requests={"finished": 7, "cancelled": 1, "failed": 1}, tokens={"prompt": 100, "generated": 50})


@pytest.mark.parametrize(
    ("finished", "cancelled", "failed", "prompt", "generated", "is_alone"),
    [
        (2, 1, 0, 40, 10, True),
        (3, 0, 0, 40, 30, True),
        (2, 0, 1, 40, 17, True),
        (2, 0, 0, 40, 17, False),  # one of its own is not there
        (3, 1, 0, 40, 17, False),  # one more has ended
        (2, 1, 0, 41, 17, False),  # one more has begun
        (2, 1, 0, 40, 31, False),  # one goes on that began before
        (2, 1, 0, 40, 9, False),
    ],
)
def test_what_others_did_is_told_apart(
    finished: int, cancelled: int, failed: int, prompt: int, generated: int, is_alone: bool
) -> None:
    after = stats(
        requests={"finished": 7 + finished, "cancelled": 1 + cancelled, "failed": 1 + failed},
        tokens={"prompt": 100 + prompt, "generated": 50 + generated},
    )

    assert SENT.accounts_for(BEFORE, after) is is_alone
