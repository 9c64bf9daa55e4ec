"""Deadlines in order, and none left behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.engine.deadlines import Deadlines


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard", "pop"]), st.integers(0, 9), st.integers(0, 20)),
        max_size=40,
    )
)
def test_keys_come_out_when_their_time_is_over_and_only_then(operations):
    deadlines, expected = Deadlines(), {}
    for operation, key, moment in operations:
        if operation == "add" and key not in expected:
            expected[key] = moment
            deadlines.add(key, moment)
        elif operation == "discard":
            expected.pop(key, None)
            deadlines.discard(key)
        elif operation == "pop":
            passed = sorted((at, key) for key, at in expected.items() if at <= moment)
            assert deadlines.pop_passed(moment) == [key for _, key in passed]
            expected = {key: at for key, at in expected.items() if at > moment}
        assert len(deadlines) == len(expected)
        assert deadlines.next() == min(expected.values(), default=None)
