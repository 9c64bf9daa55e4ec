"""Decides which tokens run in the next step, and who gives way when blocks run out."""

from __future__ import annotations

from collections import deque
from typing import Any

from prefixcache import OutOfBlocksError
from prefixcache_worker.engine.batch import ScheduledSpan
from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.engine.sequence import Sequence


class Scheduler:
    """Owns the queues; every sequence it knows is in exactly one of them.

    Oldest first: running sequences are served before waiting ones, and when blocks run out the
    youngest is preempted: its rows stay in the tree, it goes to the head of the waiting queue and
    continues there with what is still cached.

    A waiting prompt that is about to be in the tree, because a running one that begins the same is
    just being prefilled, waits for it: one computation serves both (single flight).

    Invariants, proved by `check`: running sequences hold a handle, waiting ones none;
    `num_running <= max_running`, counting the choices that will fork.
    """

    def __init__(self, cache: CacheScheme[Any], *, max_batch_tokens: int, max_running: int) -> None:
        self._cache = cache
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission, oldest first
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        """Sequences that run, with the choices that will split off from them."""
        return sum(1 + sequence.num_choices_to_fork for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the waiting queue."""
        self.waiting.append(sequence)

    def add_fork(self, parent: Sequence, sequence: Sequence) -> None:
        """Let a choice run that continues on its parent's blocks, or on a copy where nothing is shared.

        When there is no room for a copy, the choice waits like one that was preempted.
        """
        try:
            sequence.handle = self._cache.fork(parent.running_handle)
        except OutOfBlocksError:
            self.waiting.appendleft(sequence)
            return
        sequence.num_computed_tokens = parent.num_computed_tokens
        self.running.append(sequence)

    def schedule(self) -> list[ScheduledSpan]:
        """The tokens of the next step: at most `max_batch_tokens`, every sequence with room for its own.

        Decoding sequences come first, then prefills in chunks, then admissions. Empty only when
        nothing waits and nothing runs.
        """
        scheduled: list[ScheduledSpan] = []
        budget = self._max_batch_tokens
        for sequence in sorted(self.running, key=lambda s: s.num_uncomputed_tokens > 1):
            if budget == 0:
                break
            if sequence.handle is not None and self._make_room(sequence):
                num_tokens = min(sequence.num_uncomputed_tokens, budget)
                scheduled.append(ScheduledSpan(sequence, num_tokens))
                budget -= num_tokens
        for sequence in list(self.waiting):
            if budget == 0 or not self._admit(sequence):
                break
            if sequence.handle is not None:
                num_tokens = min(sequence.num_uncomputed_tokens, budget)
                scheduled.append(ScheduledSpan(sequence, num_tokens))
                budget -= num_tokens
        assert scheduled or not (self.waiting or self.running), "work, but nothing to run"
        return scheduled

    def preempt(self, sequence: Sequence) -> None:
        """Put a running sequence back to the head of the waiting queue; its written rows stay cached."""
        self._give_back(sequence)
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def retire(self, sequence: Sequence) -> None:
        """Take a sequence out for whatever reason: publish what is really written, release the handle."""
        if sequence.handle is None:
            self.waiting.remove(sequence)
        else:
            self._give_back(sequence)
            self.running.remove(sequence)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        assert all(sequence.handle is None for sequence in self.waiting)
        assert all(sequence.handle is not None for sequence in self.running)
        assert self.num_running <= self._max_running
        for sequence in [*self.waiting, *self.running]:
            sequence.check()

    def _give_back(self, sequence: Sequence) -> None:
        handle = sequence.running_handle
        if not handle.copies:  # else the rows that they were to bring are not there
            self._cache.publish(handle, sequence.num_computed_tokens, include_tail=True)
        self._cache.release(handle)
        sequence.handle = None
        sequence.num_computed_tokens = 0

    def _make_room(self, sequence: Sequence) -> bool:
        """Extend the handle to the sequence's last token; False if the sequence itself had to give way."""
        handle = sequence.running_handle
        while handle.num_tokens < len(sequence.token_ids):
            try:
                self._cache.extend(handle, sequence.token_ids[handle.num_tokens :])
            except OutOfBlocksError:
                youngest = self.running[-1]
                self.preempt(youngest)
                if youngest is sequence:
                    return False
        return True

    def _admit(self, sequence: Sequence) -> bool:
        """Let a waiting sequence run if there is room; False if those behind it must wait too."""
        num_sequences = 1 + sequence.num_choices_to_fork
        if self.num_running + num_sequences > self._max_running:
            return False
        if self._is_being_computed(sequence):
            return True
        request = sequence.request
        try:
            sequence.handle = self._cache.acquire(
                sequence.token_ids,
                request.namespace,
                num_public_tokens=request.num_public_tokens,
                use_cache=request.use_cache,
                max_cached_tokens=sequence.max_cached_tokens,
            )
        except OutOfBlocksError:
            assert self.running, "a sequence that was admissible does not fit an idle pool"
            return False
        sequence.num_computed_tokens = sequence.handle.num_cached_tokens
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def _is_being_computed(self, sequence: Sequence) -> bool:
        """Whether a prefill in flight will soon publish more of this prompt than is cached now."""
        request = sequence.request
        if not request.use_cache or sequence.max_cached_tokens is not None:
            return False
        num_soon = max((_num_shareable(sequence, other) for other in self.running), default=0)
        if num_soon == 0:
            return False
        match = self._cache.match(
            sequence.token_ids, request.namespace, num_public_tokens=request.num_public_tokens
        )
        block_size = self._cache.block_size
        return min(num_soon, len(sequence.token_ids) - 1) // block_size > match.num_tokens // block_size


def _num_shareable(sequence: Sequence, other: Sequence) -> int:
    """Prompt tokens that `other` is computing and that `sequence` will be able to see; 0 if none."""
    a, b = sequence.request, other.request
    if not (other.is_prefilling and b.use_cache and a.namespace.domain == b.namespace.domain):
        return 0
    num_common = sequence.num_common_prompt_tokens(other)
    # What the sequence declares public it looks for among public rows only.
    if a.namespace.scope == b.namespace.scope and a.num_public_tokens <= b.num_public_tokens:
        return num_common
    return min(num_common, b.num_public_tokens)
