"""Which prompts need not be computed because another sequence is just computing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from prefixcache.namespace import PUBLIC_SCOPE
from prefixcache.token_chunks import TOKEN_BYTES
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


class Offer(NamedTuple):
    """What a prefill will publish, and where others find it."""

    domain: bytes
    scope: bytes
    tokens: bytes
    """Packed: the whole prompt in the leader's own scope, what is declared public in the public one."""
    number: int
    """Of the leader's admission."""
    leader: Sequence


class RunningPrefills:
    """The prefills whose rows others may use, in the order of their tokens.

    Those that begin with the same blocks lie side by side. So a prompt meets only those that compute
    the block behind its cached prefix, however many others share that prefix.

    Invariant, proved by `check`: every running sequence that prefills and uses the cache is here once,
    and besides at most those that have prefilled since `discard_computed`.
    """

    def __init__(self) -> None:
        self._offers = SortedList()
        self._offers_by_leader: dict[Sequence, list[Offer]] = {}
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._offers_by_leader)

    def add(self, sequence: Sequence) -> None:
        """A sequence was admitted; a no-op if nobody can use what it computes. O(log prefills)."""
        request = sequence.request
        if not (request.use_cache and sequence.is_prefilling):
            return
        domain, number, tokens = request.namespace.domain, next(self._numbers), sequence.packed_prompt
        offers = [Offer(domain, request.namespace.scope, tokens, number, sequence)]
        if request.num_public_tokens:
            public = tokens[: request.num_public_tokens * TOKEN_BYTES]
            offers.append(Offer(domain, PUBLIC_SCOPE, public, number, sequence))
        self._offers.update(offers)
        self._offers_by_leader[sequence] = offers

    def discard(self, sequence: Sequence) -> None:
        """A sequence prefills no more; a no-op if it is not here. O(log prefills)."""
        for offer in self._offers_by_leader.pop(sequence, ()):
            self._offers.remove(offer)

    def discard_computed(self) -> None:
        """Drop those whose prompts are computed by now. O(prefills)."""
        for sequence in [leader for leader in self._offers_by_leader if not leader.is_prefilling]:
            self.discard(sequence)

    def behind(self, domain: bytes, scope: bytes, tokens: bytes) -> Iterator[Offer]:
        """The offers in this scope that begin with these packed tokens. O(log prefills + their number)."""
        for offer in self._offers.irange(minimum=(domain, scope, tokens)):
            if (offer.domain, offer.scope) != (domain, scope) or not offer.tokens.startswith(tokens):
                return
            yield offer

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError if the invariant is broken. For tests."""
        prefills = {sequence for sequence in running if sequence.is_prefilling and sequence.request.use_cache}
        assert prefills == {leader for leader in self._offers_by_leader if leader.is_prefilling}
        assert sorted(chain(*self._offers_by_leader.values())) == list(self._offers)


def find_flight(cache: CacheScheme[Any], sequence: Sequence, prefills: RunningPrefills) -> Flight | None:
    """The prefill that will publish most of this prompt, if that is more than is cached now.

    A less urgent leader is no use: it may have to wait itself. O(log prefills) and a match, and for each
    prefill that computes the block behind the match O(prompt) at memory speed.
    """
    if not prefills or not sequence.request.use_cache or sequence.max_cached_tokens is not None:
        return None
    block_size, namespace = cache.block_size, sequence.request.namespace
    num_cached_blocks = sequence.match_in(cache).num_tokens // block_size
    num_least = (num_cached_blocks + 1) * block_size
    num_most = sequence.num_tokens - 1  # one token at least is left to compute
    if num_least > min(num_most, sequence.num_prompt_tokens):
        return None
    tokens = sequence.packed_prompt[: num_least * TOKEN_BYTES]
    offers = chain.from_iterable(
        prefills.behind(namespace.domain, scope, tokens) for scope in (namespace.scope, PUBLIC_SCOPE)
    )
    flights: list[tuple[int, int, Flight]] = []
    for offer in offers:
        leader = offer.leader
        if leader.is_prefilling and _leads(leader, sequence):
            num_tokens = min(_num_shareable_tokens(sequence, leader), num_most)
            flight = Flight(leader, num_tokens - num_tokens % block_size)
            if flight.num_tokens >= num_least and not flight.has_ended:
                flights.append((flight.num_tokens, -offer.number, flight))
    return max(flights)[-1] if flights else None  # of equals the one that was admitted first


def _leads(leader: Sequence, sequence: Sequence) -> bool:
    return leader.is_overdue or leader.priority >= sequence.priority


def _num_shareable_tokens(sequence: Sequence, leader: Sequence) -> int:
    """Prompt tokens that `leader` publishes where `sequence` will look for them, in the same domain."""
    own, others = sequence.request, leader.request
    num_common = sequence.num_common_prompt_tokens(leader)
    # What the sequence declares public it looks for among public rows only.
    if own.namespace.scope == others.namespace.scope and own.num_public_tokens <= others.num_public_tokens:
        return num_common
    return min(num_common, others.num_public_tokens)
