"""The hits of a cache that knows the future: no policy can have more."""

from __future__ import annotations

from array import array
from collections import Counter
from heapq import heappop, heappush
from typing import NamedTuple

from prefixcache.namespace import PUBLIC_SCOPE
from prefixcache.replay.counts import ReplayCounts
from prefixcache.replay.trace import Trace, TraceRequest
from prefixcache.token_chunks import TOKEN_BYTES


class _Access(NamedTuple):
    """The blocks of one request."""

    blocks: array[int]
    """Numbers of the blocks it leaves written, from the first on."""
    num_prompt_ids: int
    num_readable: int
    """Blocks at the beginning that it could hit."""
    num_needed: int
    """Blocks it cannot run without."""


class Optimum:
    """Belady's clairvoyant cache, block by block: what is asked for again latest makes room.

    After each request it keeps any `num_blocks` of the blocks it had and those of the request, and
    is allowed to know which will be asked for when. A block is never asked for later than those
    behind it, so what is kept are always prefixes, and the result is the best that a prefix cache
    can do; quotas are not considered. Requests that need more than `num_blocks` are refused, but
    what they declare public counts as public.

    Whole blocks only: a real cache on a trace of tokens also copies parts of blocks, up to
    `block_size - 1` tokens a request.
    """

    def __init__(self, trace: Trace) -> None:
        """Nothing is read of the trace; give its requests to `add`, in order."""
        self._ids_per_block = trace.block_size if trace.has_tokens else 1
        self._is_last_id_computed = trace.has_tokens
        self._accesses: list[_Access] = []
        self._root_of_scope: dict[tuple[bytes, bytes], int] = {}  # negative numbers
        self._block_of_chunk: dict[tuple[int, bytes], int] = {}  # (block before, its ids) -> block

    def add(self, request: TraceRequest) -> None:
        """Take note of the next request. O(ids)."""
        num_prompt_ids = len(request.prompt_ids) // TOKEN_BYTES
        num_output_ids = len(request.output_ids) // TOKEN_BYTES
        num_written_ids = num_prompt_ids + max(0, num_output_ids - 1)  # the last is never read back
        written = (request.prompt_ids + request.output_ids)[: num_written_ids * TOKEN_BYTES]
        self._accesses.append(
            _Access(
                blocks=self._blocks(request, written),
                num_prompt_ids=num_prompt_ids,
                num_readable=(num_prompt_ids - self._is_last_id_computed) // self._ids_per_block,
                num_needed=-(-(num_prompt_ids + num_output_ids) // self._ids_per_block),
            )
        )

    def counts(self, num_blocks: int) -> ReplayCounts:
        """What the requests so far come to in a clairvoyant cache of so many blocks.

        O(blocks of all requests + requests * log requests).
        """
        counts = ReplayCounts()
        waits = self._waits(num_blocks)
        num_kept = [0] * len(self._accesses)  # by the request that asks for them next
        num_cached = 0
        latest: list[int] = []  # a heap of the requests that ask for what is kept, negated
        for index, access in enumerate(self._accesses):
            counts.num_requests += 1
            counts.num_refused += access.num_needed > num_blocks
            counts.num_prompt_ids += access.num_prompt_ids
            counts.num_hit_ids += num_kept[index] * self._ids_per_block
            num_cached -= num_kept[index]
            for next_index, num_waiting in waits[index]:
                num_kept[next_index] += num_waiting
                num_cached += num_waiting
                heappush(latest, -next_index)
            while num_cached > num_blocks:
                last_index = -latest[0]
                num_dropped = min(num_cached - num_blocks, num_kept[last_index])
                num_kept[last_index] -= num_dropped
                num_cached -= num_dropped
                if num_kept[last_index] == 0:
                    heappop(latest)
        return counts

    def _waits(self, num_blocks: int) -> list[list[tuple[int, int]]]:
        """For each request: which later ones ask next for how many of its blocks."""
        waits: list[list[tuple[int, int]]] = [[] for _ in self._accesses]
        last_use = [-1] * len(self._block_of_chunk)
        for index, access in enumerate(self._accesses):
            if access.num_needed > num_blocks:
                continue
            uses = Counter(map(last_use.__getitem__, access.blocks[: access.num_readable]))
            for use, num_waiting in uses.items():
                if use >= 0:
                    waits[use].append((index, num_waiting))
            for block in access.blocks:
                last_use[block] = index
        return waits

    def _blocks(self, request: TraceRequest, written: bytes) -> array[int]:
        """The number of each whole block: the same for the same ids behind the same block.

        Requests of other scopes have the same block only where one of them made it public.
        """
        chunk_bytes = self._ids_per_block * TOKEN_BYTES
        num_public_blocks = request.num_public_ids // self._ids_per_block
        numbers = self._block_of_chunk
        private = self._root(request.namespace.domain, request.namespace.scope)
        public: int | None = self._root(request.namespace.domain, PUBLIC_SCOPE)
        blocks = array("I")
        for index in range(len(written) // chunk_bytes):
            chunk = written[index * chunk_bytes : (index + 1) * chunk_bytes]
            private = numbers.setdefault((private, chunk), len(numbers))
            if public is not None:
                if index < num_public_blocks:
                    public = numbers.setdefault((public, chunk), len(numbers))
                else:
                    public = numbers.get((public, chunk))
            blocks.append(private if public is None else public)
        return blocks

    def _root(self, domain: bytes, scope: bytes) -> int:
        return self._root_of_scope.setdefault((domain, scope), -1 - len(self._root_of_scope))
