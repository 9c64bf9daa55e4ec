"""Random operations against a simulated KV store and a naive oracle, everything checked after each."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.prefix_oracle import PrefixOracle
from support.simulated_store import SimulatedStore
from xxhash import xxh3_64_intdigest

from prefixcache import CacheHandle, Namespace, OutOfBlocksError, PendingCopiesError, PrefixCache

NAMESPACES = [
    Namespace("model", "one", is_publisher=True),
    Namespace("model", "one", salt="pepper", is_publisher=True),
    Namespace("model", "two", is_publisher=True),
    Namespace("other model", "one", is_publisher=True),
]
MOSTLY_ONE_NAMESPACE = st.sampled_from([NAMESPACES[0]] * 4 + NAMESPACES)
NEW_TOKEN = 9  # in no generated sequence


def four_bit_hash(chunk: bytes) -> int:
    return xxh3_64_intdigest(chunk) & 0xF


@dataclass(eq=False)
class Sequence:
    """What the worker would know of one handle."""

    handle: CacheHandle
    tokens: list[int]
    num_written: int
    is_ending: bool = False  # published its tail with room to spare: nothing more may be written


class CacheMachine(RuleBasedStateMachine):
    chunk_hash = staticmethod(xxh3_64_intdigest)

    @initialize(block_size=st.sampled_from([1, 4, 16]), is_tight=st.booleans())
    def start(self, block_size: int, is_tight: bool) -> None:
        self.block_size = block_size
        self.store = SimulatedStore(block_size)
        num_blocks = 10 if is_tight else 2000
        self.cache = PrefixCache(
            num_blocks=num_blocks,
            block_size=block_size,
            chunk_hash=self.chunk_hash,
            on_free=self.store.poison,
        )
        self.oracle = PrefixOracle(block_size)
        self.max_kept_tokens = max(12, 4 * block_size)  # comparing prefixes is quadratic
        self.sequences: list[Sequence] = []
        self.known_prompts = [[0, 1] * (2 * block_size), [0, 1, 1] * block_size + [0] * (block_size // 2)]

    @rule(data=st.data(), namespace=MOSTLY_ONE_NAMESPACE, use_cache=st.sampled_from([True] * 7 + [False]))
    def acquire(self, data: st.DataObject, namespace: Namespace, use_cache: bool) -> None:
        self._acquire(data, namespace, use_cache)

    @rule(data=st.data(), namespace=MOSTLY_ONE_NAMESPACE)
    def serve(self, data: st.DataObject, namespace: Namespace) -> None:
        sequence = self._acquire(data, namespace)
        if sequence is not None:
            self._write(sequence, len(sequence.tokens))
            self._publish(sequence, include_tail=True)
            self._release(sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def write_some(self, data: st.DataObject) -> None:
        sequence = self._draw_sequence(data)
        self._write(sequence, data.draw(st.integers(sequence.num_written, len(sequence.tokens))))

    @precondition(lambda self: self.sequences)
    @rule()
    def write_all(self) -> None:
        for sequence in self.sequences:
            self._write(sequence, len(sequence.tokens))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence = self._draw_sequence(data)
        if sequence.is_ending or len(sequence.tokens) > 2 * self.max_kept_tokens:
            return
        before = (self.cache.stats(), list(sequence.handle.block_table), sequence.handle.token_ids)
        try:
            copies = self.cache.extend(sequence.handle, tokens)
        except OutOfBlocksError:
            assert (self.cache.stats(), sequence.handle.block_table, sequence.handle.token_ids) == before
            return
        assert sequence.handle.copies[len(sequence.handle.copies) - len(copies) :] == copies
        sequence.tokens = sequence.tokens + tokens
        self.known_prompts.append(sequence.tokens)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        sequence = self._draw_sequence(data)
        if sequence.handle.copies:
            with pytest.raises(PendingCopiesError):
                self.cache.fork(sequence.handle)
        self._write(sequence, len(sequence.tokens))
        if sequence.is_ending:
            return
        forked = self.cache.fork(sequence.handle)
        assert forked.block_table == sequence.handle.block_table
        self.sequences.append(Sequence(forked, sequence.tokens, sequence.num_written))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), include_tail=st.booleans())
    def publish(self, data: st.DataObject, include_tail: bool) -> None:
        self._publish(self._draw_sequence(data), include_tail)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), publishes=st.booleans())
    def release(self, data: st.DataObject, publishes: bool) -> None:
        sequence = self._draw_sequence(data)
        if publishes:
            self._execute_copies(sequence)
            self._publish(sequence, include_tail=True)
        self._release(sequence)

    @precondition(lambda self: self.cache.stats().num_idle)
    @rule(num_blocks=st.integers(0, 4))
    def evict(self, num_blocks: int) -> None:
        num_idle = self.cache.stats().num_idle
        assert self.cache.evict(num_blocks) == min(num_blocks, num_idle)

    @invariant()
    def counts_and_structure_are_right(self) -> None:
        self.cache.check()
        assert len(self.sequences) == len(self.cache._handles)

    @invariant()
    def every_row_is_what_its_owner_takes_it_for(self) -> None:
        for sequence in self.sequences:
            handle = sequence.handle
            assert handle.token_ids == sequence.tokens
            pending = {handle.block_table.index(copy.target) for copy in handle.copies}
            positions = [i for i in range(sequence.num_written) if i // self.block_size not in pending]
            self.store.expect(handle.block_table, handle.namespace.domain, sequence.tokens, positions)
            for copy in handle.copies:  # its source still holds what will be copied
                start = handle.block_table.index(copy.target) * self.block_size
                table = [copy.source] * (start // self.block_size + 1)
                self.store.expect(
                    table, handle.namespace.domain, sequence.tokens, range(start, start + copy.num_slots)
                )

    @invariant()
    def every_row_in_the_tree_is_written(self) -> None:
        paths: dict[int, tuple[list[int], list[int]]] = {0: ([], [])}
        for node in self.cache.dump():
            above_tokens, above_blocks = paths[node.parent_id]
            tokens, table = above_tokens + list(node.token_ids), above_blocks + list(node.block_ids)
            paths[node.id] = (tokens, table)
            domain = Namespace(node.model, node.tenant, adapter=node.adapter).domain
            self.store.expect(table, domain, tokens, range(len(above_tokens), len(tokens)))

    # Prompts repeat beginnings of earlier ones, or nothing would ever be shared.
    def _acquire(self, data: st.DataObject, namespace: Namespace, use_cache: bool = True) -> Sequence | None:
        known = data.draw(st.sampled_from(self.known_prompts))
        kept = data.draw(st.one_of(st.just(len(known)), st.integers(0, len(known))))
        kept = min(kept, self.max_kept_tokens)
        own = data.draw(st.lists(st.integers(0, 1), max_size=self.block_size + 2))
        prompt = known[:kept] + own or [1]
        num_public = data.draw(st.one_of(st.just(0), st.integers(0, len(prompt))))
        self.known_prompts.append(prompt)
        before = (self.cache.stats(), self.cache.dump())
        match = self.cache.match(prompt, namespace, num_public_tokens=num_public)
        assert (self.cache.stats(), self.cache.dump()) == before
        num_prompt_blocks = -(-len(prompt) // self.block_size)
        is_roomy = self.cache.num_available_blocks > num_prompt_blocks
        try:
            handle = self.cache.acquire(prompt, namespace, num_public_tokens=num_public, use_cache=use_cache)
        except OutOfBlocksError:
            assert num_prompt_blocks > before[0].num_free + before[0].num_idle
            assert (self.cache.stats(), self.cache.dump()) == before
            return None
        if not use_cache:
            assert handle.num_cached_tokens == 0
        elif is_roomy:
            assert handle.num_cached_tokens == match.num_tokens
            # What was evicted may have been published again under a public prefix that came later,
            # so that it is found where the oracle, which still has the old place, does not look.
            exact = self._has_forgotten_nothing()
            expected, _ = self.oracle.longest_match(prompt[:-1], namespace, num_public if exact else 0)
            assert match.num_tokens == expected or (not exact and match.num_tokens < expected)
        sequence = Sequence(handle, prompt, num_written=handle.num_cached_tokens)
        self.sequences.append(sequence)
        return sequence

    def _write(self, sequence: Sequence, num_written: int) -> None:
        self._execute_copies(sequence)
        if sequence.is_ending:
            return
        for position in range(sequence.num_written, num_written):
            block_id = sequence.handle.block_table[position // self.block_size]
            assert not self._is_shared(block_id, sequence)
            self.store.write(
                sequence.handle.block_table, sequence.handle.namespace.domain, sequence.tokens, position
            )
        sequence.num_written = num_written

    def _publish(self, sequence: Sequence, include_tail: bool) -> None:
        handle, num_written = sequence.handle, sequence.num_written
        if (
            handle.copies
            and num_written > handle.block_table.index(handle.copies[0].target) * self.block_size
        ):
            with pytest.raises(PendingCopiesError):
                self.cache.publish(handle, num_written, include_tail=include_tail)
            return
        self.cache.publish(handle, num_written, include_tail=include_tail)
        sequence.is_ending |= include_tail and num_written < len(sequence.tokens)
        if not handle.use_cache:
            return
        num_published = num_written if include_tail else num_written - num_written % self.block_size
        published = sequence.tokens[:num_published]
        match = self.cache.match(
            [*published, NEW_TOKEN],
            handle.namespace,
            num_public_tokens=min(handle.num_public_tokens, num_published + 1),
        )
        if match.num_tokens == num_published:
            self.oracle.publish(published, handle.namespace, handle.num_public_tokens)
        else:  # put off because of a fork, or its place was taken
            assert self.chunk_hash is four_bit_hash or any(
                self._is_shared(block_id, sequence) for block_id in handle.block_table
            )

    def _release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.handle)
        self.sequences.remove(sequence)

    def _execute_copies(self, sequence: Sequence) -> None:
        self.store.execute(sequence.handle.copies)
        self.cache.complete_copies(sequence.handle)

    def _draw_sequence(self, data: st.DataObject) -> Sequence:
        return self.sequences[data.draw(st.integers(0, len(self.sequences) - 1))]

    def _is_shared(self, block_id: int, owner: Sequence) -> bool:
        in_tree = any(block_id in node.block_ids for node in self.cache.dump())
        others = [other.handle for other in self.sequences if other is not owner]
        return in_tree or any(
            block_id in other.block_table or block_id in [copy.source for copy in other.copies]
            for other in others
        )

    def _has_forgotten_nothing(self) -> bool:
        return self.cache.stats().num_evicted == 0 and self.chunk_hash is xxh3_64_intdigest


class CollidingCacheMachine(CacheMachine):
    chunk_hash = staticmethod(four_bit_hash)


MACHINE_SETTINGS = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = MACHINE_SETTINGS
TestCollidingCacheMachine = CollidingCacheMachine.TestCase
TestCollidingCacheMachine.settings = MACHINE_SETTINGS
