"""Random operations on a cache that is compared with its model after each."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

from support.cache_model import Sequence
from support.cache_settings import CacheSettings
from support.cache_state import observed
from support.chooser import Chooser
from support.compared_cache import ComparedCache
from support.saved_caches import restart, restore, save

from prefixcache import (
    CacheHandle,
    ForeignHandleError,
    HandleReleasedError,
    InvalidArgumentError,
    Namespace,
    PrefixCache,
    PrefixCacheError,
    TenantQuota,
    UnknownTenantError,
)

NAMESPACES = [
    *[Namespace("model", "one", is_publisher=True)] * 4,
    Namespace("model", "one", salt="pepper", is_publisher=True),
    *[Namespace("model", "two", is_publisher=True)] * 2,
    Namespace("model", "three"),
    Namespace("other model", "one", is_publisher=True),
]
MAX_SEQUENCES = 10
MAX_PROMPTS = 40

OPERATION_WEIGHTS = {
    "acquire": 6,
    "serve": 4,
    "extend": 4,
    "publish": 4,
    "write": 3,
    "write_all": 3,
    "release": 3,
    "execute": 2,
    "fork": 2,
    "give_back": 2,
    "pin": 2,
    "set_quota": 2,
    "renew_pin": 1,
    "end_pin": 1,
    "evict": 1,
    "look": 1,
    "misuse": 1,
    "reset": 1,
    "restart": 1,
}
"""How often each method of `CacheDriver` should come up."""


class CacheDriver:
    """Draws operations as requests of several tenants would bring them."""

    def __init__(self, settings: CacheSettings) -> None:
        self.compared = ComparedCache(settings)
        size = self._block_size = settings.block_size
        self._max_kept_tokens = max(12, 4 * size)  # searching in the naive way takes its time
        prompts = [[0, 1] * (2 * size), [0, 1, 1] * size + [0] * (size // 2)]
        self._known_prompts = deque(prompts, maxlen=MAX_PROMPTS)
        self._stranger = PrefixCache(num_blocks=1, block_size=size).acquire([1], NAMESPACES[0])

    def perform(self, operation: str, choose: Chooser) -> None:
        """One operation of `OPERATION_WEIGHTS`, perhaps after some time."""
        if choose.one_in(4):
            self.compared.let_pass(choose.integer(0, 6))
        getattr(self, operation)(choose)
        self.compared.check_counts()

    def acquire(self, choose: Chooser) -> Sequence | None:
        if len(self._sequences) >= MAX_SEQUENCES:
            self.release(choose)
        prompt, namespace, num_public = self._draw_prompt(choose)
        return self.compared.acquire(
            prompt,
            namespace,
            num_public=num_public,
            use_cache=not choose.one_in(8),
            max_cached=choose.integer(0, len(prompt)) if num_public == 0 and choose.one_in(8) else None,
            is_resumed=choose.one_in(8),
            priority=choose.one_of([0, 0, 0, 1, 5, -1]),
            priority_seconds=choose.one_of([inf, inf, 3]),
        )

    def serve(self, choose: Chooser) -> None:
        """A whole request."""
        sequence = self.acquire(choose)
        if sequence is not None:
            self._finish(sequence)

    def extend(self, choose: Chooser) -> None:
        sequence = self._draw_sequence(choose)
        if sequence is not None and not sequence.is_ending:
            num_tokens = choose.integer(0, 6)
            if len(sequence.tokens) + num_tokens <= 2 * self._max_kept_tokens:
                self.compared.extend(sequence, choose.bits(num_tokens))
                self._known_prompts.append(sequence.tokens)

    def write(self, choose: Chooser) -> None:
        sequence = self._draw_sequence(choose)
        if sequence is not None:
            self.compared.write(sequence, choose.integer(sequence.num_written, len(sequence.tokens)))

    def write_all(self, choose: Chooser) -> None:
        for sequence in self._sequences:
            self.compared.write(sequence, len(sequence.tokens))

    def execute(self, choose: Chooser) -> None:
        sequence = self._draw_sequence(choose)
        if sequence is not None:
            self.compared.execute(sequence)

    def fork(self, choose: Chooser) -> None:
        sequence = self._draw_sequence(choose)
        if sequence is None or len(self._sequences) >= MAX_SEQUENCES:
            return
        if not sequence.handle.copies:
            self.compared.write(sequence, len(sequence.tokens))
        if not sequence.is_ending:
            self.compared.fork(sequence)

    def publish(self, choose: Chooser) -> None:
        sequence = self._draw_sequence(choose)
        if sequence is not None:
            num_written = sequence.num_written
            if choose.one_in(4):
                num_written = choose.integer(0, num_written)
            self.compared.publish(sequence, num_written, include_tail=choose.one_in(2))

    def give_back(self, choose: Chooser) -> None:
        sequence = self._draw_sequence(choose)
        if sequence is not None:
            end = choose.integer(0, sequence.num_written)
            self.compared.give_back(sequence, choose.integer(0, end + 1), end)

    def release(self, choose: Chooser) -> None:
        """The end of a request, or its cancellation whatever is pending."""
        sequence = self._draw_sequence(choose)
        if sequence is not None:
            if choose.one_in(2):
                self._finish(sequence)
            else:
                self.compared.release(sequence)

    def evict(self, choose: Chooser) -> None:
        self.compared.evict(choose.integer(0, 4))

    def look(self, choose: Chooser) -> None:
        """What only reads changes nothing, not even ages."""
        prompt, namespace, num_public = self._draw_prompt(choose)
        before = observed(self.compared.cache)
        match = self.compared.match(prompt, namespace, num_public)
        explanation = self.compared.cache.explain(prompt, namespace, num_public_tokens=num_public)
        assert explanation.num_cached_tokens == match.num_tokens
        assert observed(self.compared.cache) == before

    def pin(self, choose: Chooser) -> None:
        prompt, namespace, num_public = self._draw_prompt(choose)
        num_public = min(num_public, len(prompt) // self._block_size * self._block_size)
        ttl_seconds = choose.one_of([inf, 1, 5, 20])
        self.compared.pin(prompt, namespace, num_public=num_public, ttl_seconds=ttl_seconds)

    def renew_pin(self, choose: Chooser) -> None:
        if pins := list(self.compared.model.deadline_of):
            self.compared.renew_pin(choose.one_of(pins))

    def end_pin(self, choose: Chooser) -> None:
        if pins := list(self.compared.model.deadline_of):
            self.compared.end_pin(choose.one_of(pins))

    def set_quota(self, choose: Chooser) -> None:
        num_blocks = self.compared.settings.num_blocks
        floor_blocks = choose.one_of([0, choose.integer(0, num_blocks // 2)])
        ceiling_blocks = choose.one_of([None, None, choose.integer(max(1, floor_blocks), num_blocks)])
        quota = TenantQuota(floor_blocks=floor_blocks, ceiling_blocks=ceiling_blocks)
        self.compared.set_quota(choose.one_of(NAMESPACES).tenant, quota)

    def reset(self, choose: Chooser) -> None:
        """Forget everything; sometimes take it up again from a snapshot, as far as there is room."""
        if choose.one_in(3):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "snapshot")
                saved = save(self.compared, path) if choose.one_in(3) else None
                self.compared.reset()
                if saved is not None:
                    restore(self.compared, path, saved)

    def restart(self, choose: Chooser) -> None:
        if choose.one_in(6):
            with tempfile.TemporaryDirectory() as folder:
                restart(self.compared, Path(folder))

    def misuse(self, choose: Chooser) -> None:
        """Every wrong call is refused with a typed error, and changes nothing."""
        cache, namespace, block = self.compared.cache, NAMESPACES[0], [1] * self._block_size
        calls: list[tuple[Callable[[], object], type[PrefixCacheError], str]] = [
            (partial(cache.acquire, [], namespace), InvalidArgumentError, "the prompt is empty"),
            (partial(cache.match, [1], namespace, num_public_tokens=2), InvalidArgumentError, "give 0 to 1"),
            (partial(cache.pin, block, namespace, ttl_seconds=0), InvalidArgumentError, "ttl_seconds is 0"),
            (partial(cache.evict, -1), InvalidArgumentError, "-1"),
            (partial(cache.usage, "nobody"), UnknownTenantError, "'nobody'"),
        ]
        takers_of_handles: list[Callable[[CacheHandle], object]] = [
            cache.release,
            cache.fork,
            cache.complete_copies,
            partial(cache.extend, token_ids=[1]),
            partial(cache.publish, num_written_tokens=1),
            partial(cache.give_back, start_token=0, end_token=0),
        ]
        take = choose.one_of(takers_of_handles)
        calls.append((partial(take, self._stranger), ForeignHandleError, "another cache"))
        if self.compared.released is not None:
            calls.append((partial(take, self.compared.released), HandleReleasedError, "released already"))
        sequence = self._draw_sequence(choose)
        if sequence is not None:
            num_room = len(sequence.tokens)
            publish_too_much = partial(cache.publish, sequence.handle, num_room + 1)
            calls.append((publish_too_much, InvalidArgumentError, f"has room for {num_room}"))
        self.compared.refused(*choose.one_of(calls))

    @property
    def _sequences(self) -> list[Sequence]:
        return self.compared.model.sequences

    def _finish(self, sequence: Sequence) -> None:
        self.compared.write(sequence, len(sequence.tokens))
        self.compared.publish(sequence, sequence.num_written, include_tail=True)
        self.compared.release(sequence)

    def _draw_prompt(self, choose: Chooser) -> tuple[list[int], Namespace, int]:
        """A prompt that begins like an earlier one, or nothing would ever be shared; whose; how public."""
        known = choose.one_of(self._known_prompts)
        num_kept = min(self._max_kept_tokens, len(known))
        if choose.one_in(2):
            num_kept = choose.integer(0, num_kept)
        prompt = known[:num_kept] + choose.bits(choose.integer(0, self._block_size + 2)) or [1]
        self._known_prompts.append(prompt)
        num_public = choose.integer(0, len(prompt)) if choose.one_in(3) else 0
        return prompt, choose.one_of(NAMESPACES), num_public

    def _draw_sequence(self, choose: Chooser) -> Sequence | None:
        return choose.one_of(self._sequences) if self._sequences else None
