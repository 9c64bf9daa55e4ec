"""Whether what requests hold adds up to what the pool and the gauges say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding
from prefixcache_worker.engine.engine import Engine


class _Count(NamedTuple):
    """Something that is counted twice."""

    expected: int
    found: int
    sentence: str
    """With places for both."""


def check_counts(engine: Engine) -> Iterator[StepFinding]:
    """Between two steps: whether all that is live is held by a live request, and the gauges say so.

    So when no request lives, no block may. O(blocks that are held).
    """
    for count in _counts(engine):
        if count.expected != count.found:
            sentence = count.sentence.format(*count)
            yield StepFinding(StepFault.COUNTS, "", count.expected, count.found, sentence)


def _counts(engine: Engine) -> Iterator[_Count]:
    pool, gauges = engine.cache.stats(), engine.stats()
    sequences = [sequence for answer in engine.answers() for sequence in answer.sequences]
    handles = [sequence.handle for sequence in sequences if sequence.handle is not None]
    copies = [copy for handle in handles for copy in handle.copies]
    held = {block_id for handle in handles for block_id in handle.held_blocks}
    if engine.cache.shares_prefixes:
        held |= {copy.source for copy in copies}
    if engine.cache.shares_prefixes or not copies:  # else more is kept for the copies than they name
        yield _Count(len(held), pool.num_live, "requests hold {} blocks, and {} of the pool are live")
    num_blocks = pool.num_free + pool.num_idle + pool.num_live
    yield _Count(pool.num_blocks, num_blocks, "of {} blocks {} are free, idle or live")
    yield _Count(pool.num_live, gauges.blocks.live, "{} blocks are live, and the gauge says {}")
    yield _Count(pool.num_idle, gauges.blocks.idle, "{} blocks are idle, and the gauge says {}")
    yield _Count(pool.num_free, gauges.blocks.free, "{} blocks are free, and the gauge says {}")
    yield _Count(len(handles), gauges.requests.running, "{} sequences run, and the gauge says {}")
    num_waiting = len(sequences) - len(handles)
    yield _Count(num_waiting, gauges.requests.waiting, "{} sequences wait, and the gauge says {}")
