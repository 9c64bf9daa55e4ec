"""Single flight by looking at every running sequence, as an oracle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.engine.sequence import Sequence
from prefixcache_worker.engine.single_flight import Flight


def naive_find_flight(
    cache: CacheScheme[Any], sequence: Sequence, running: Iterable[Sequence]
) -> Flight | None:
    """The first of those that will publish most of this prompt, if that is more than is cached now."""
    if not sequence.request.use_cache or sequence.max_cached_tokens is not None:
        return None
    best: Flight | None = None
    for leader in running:
        if not leader.is_prefilling or not (leader.is_overdue or leader.priority >= sequence.priority):
            continue
        # One token at least is left to compute.
        num_tokens = min(_num_shareable_tokens(sequence, leader), sequence.num_tokens - 1)
        flight = Flight(leader, num_tokens - num_tokens % cache.block_size)
        if not flight.has_ended and (best is None or flight.num_tokens > best.num_tokens):
            best = flight
    return best if best and best.num_tokens > sequence.match_in(cache).num_tokens else None


def _num_shareable_tokens(sequence: Sequence, leader: Sequence) -> int:
    own, others = sequence.request, leader.request
    if not others.use_cache or own.namespace.domain != others.namespace.domain:
        return 0
    num_common = 0
    for token, other in zip(own.prompt_token_ids, others.prompt_token_ids, strict=False):
        if token != other:
            break
        num_common += 1
    if own.namespace.scope == others.namespace.scope and own.num_public_tokens <= others.num_public_tokens:
        return num_common
    return min(num_common, others.num_public_tokens)
