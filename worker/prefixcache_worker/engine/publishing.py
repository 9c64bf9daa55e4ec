"""What becomes of rows as soon as they are written: others may use them, or nobody needs them."""

from __future__ import annotations

from typing import Any

from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.engine.sequence import Sequence
from prefixcache_worker.model.model import AttentionWindow


def advance(
    sequence: Sequence, num_tokens: int, cache: CacheScheme[Any], reach: AttentionWindow | None
) -> None:
    """Count rows as written; whenever that fills a block, everybody may use it.

    Where every layer has a window, at most `reach`, rows that all have left behind are given back. What is
    behind them can then not be published: so a prompt is published as a whole first, and output not before
    the end.
    """
    before = sequence.num_computed_tokens // cache.block_size
    sequence.num_computed_tokens += num_tokens
    if sequence.num_computed_tokens // cache.block_size == before:
        return
    handle = sequence.running_handle
    if reach is None or sequence.num_computed_tokens <= sequence.num_prompt_tokens:
        sequence.num_written_tokens += cache.publish(handle, sequence.num_publishable_tokens)
    is_published = sequence.num_computed_tokens >= sequence.num_prompt_tokens
    if reach is not None and (is_published or not sequence.request.use_cache):
        first_seen = min(sequence.num_computed_tokens - reach.size + 1, handle.num_tokens - 1)
        if first_seen > reach.num_sinks:
            cache.give_back(handle, reach.num_sinks, first_seen)
