"""Random steps for the attention tests: block tables that share prefixes at several levels."""

from __future__ import annotations

from hypothesis import strategies as st

from prefixcache import BlockId
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.model.model import AttentionWindow


def windows() -> st.SearchStrategy[AttentionWindow | None]:
    """No window, or one that ends somewhere in the steps of `steps`; with and without sinks."""
    return st.none() | st.builds(AttentionWindow, st.integers(1, 150), st.sampled_from([0, 0, 1, 4, 64, 70]))


@st.composite
def steps(draw: st.DrawFn, *, max_sequences: int = 6, max_blocks: int = 4) -> tuple[list[SequenceSpan], int]:
    """(spans, block_size): tables grown from one another, so that any number share any run.

    Only blocks before a sequence's new tokens are shared, as copy-on-write guarantees.
    """
    block_size = draw(st.sampled_from([1, 4, 16, 128]))
    ids = iter(draw(st.permutations(range(max_sequences * (2 * max_blocks + 2)))))
    spans: list[SequenceSpan] = []
    for _ in range(draw(st.integers(1, max_sequences))):
        parent = draw(st.sampled_from(spans)) if spans and draw(st.booleans()) else None
        table: list[BlockId] = []
        if parent is not None:
            num_shareable = parent.start // block_size
            table = list(parent.block_table[: draw(st.integers(0, num_shareable))])
        table += [BlockId(next(ids)) for _ in range(draw(st.integers(0, max_blocks)))]
        start = len(table) * block_size
        if table and len(table) > (0 if parent is None else parent.start // block_size):
            start -= draw(st.integers(0, block_size - 1))  # a partly filled private tail
        num_tokens = draw(st.sampled_from([1, 1, 1, 2, block_size, block_size + 3]))
        while len(table) * block_size < start + num_tokens:
            table.append(BlockId(next(ids, -1)))
        if -1 in table:
            continue
        spans.append(SequenceSpan(table, start, num_tokens))
    return spans or [SequenceSpan([BlockId(0)], 0, 1)], block_size
