"""Counting tokens sparsely gives what counting a list gives."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 12), max_size=40)


@given(TOKENS, TOKENS)
def test_counts_are_those_of_the_lists(prompt, output):
    counts = TokenCounts(prompt)
    for num_generated, token in enumerate(output, 1):
        counts.add(token)
        expected = dict.fromkeys(prompt, 0) | Counter(output[:num_generated])
        assert len(counts.token_ids) == len(expected)
        assert dict(zip(counts.token_ids.tolist(), counts.num_generated.tolist(), strict=True)) == expected
