"""Which prompts need not be computed because another sequence is just computing them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.engine.sequence import Sequence


class Flight(NamedTuple):
    """A prefill that computes the beginning of another sequence's prompt."""

    leader: Sequence
    num_tokens: int
    """What the two have in common, in whole blocks: those are published as they fill."""

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing to wait for: the tokens are computed, or the leader does not go on."""
        leader = self.leader
        return leader.handle is None or leader.is_paused or leader.num_computed_tokens >= self.num_tokens


def find_flight(cache: CacheScheme[Any], sequence: Sequence, running: Iterable[Sequence]) -> Flight | None:
    """The prefill that will publish most of this prompt, if that is more than is cached now.

    A less urgent leader is no use: it may have to wait itself. O(running), and for each prefill that
    begins with the same block O(prompt) at memory speed.
    """
    if not sequence.request.use_cache or sequence.max_cached_tokens is not None:
        return None
    block_size = cache.block_size
    best: Flight | None = None
    for leader in running:
        if (
            leader.is_prefilling
            and leader.has_common_block(sequence, 0, block_size)
            and _leads(leader, sequence)
        ):
            # One token at least is left to compute.
            num_tokens = min(_num_shareable_tokens(sequence, leader), sequence.num_tokens - 1)
            flight = Flight(leader, num_tokens - num_tokens % block_size)
            if not flight.has_ended and (best is None or flight.num_tokens > best.num_tokens):
                best = flight
    return best if best and best.num_tokens > sequence.match_in(cache).num_tokens else None


def _leads(leader: Sequence, sequence: Sequence) -> bool:
    return leader.is_overdue or leader.priority >= sequence.priority


def _num_shareable_tokens(sequence: Sequence, leader: Sequence) -> int:
    """Prompt tokens that `leader` publishes where `sequence` will look for them."""
    own, others = sequence.request, leader.request
    if not (others.use_cache and own.namespace.domain == others.namespace.domain):
        return 0
    num_common = sequence.num_common_prompt_tokens(leader)
    # What the sequence declares public it looks for among public rows only.
    if own.namespace.scope == others.namespace.scope and own.num_public_tokens <= others.num_public_tokens:
        return num_common
    return min(num_common, others.num_public_tokens)
