"""Tokens for recorded requests, of which often no more is known than which blocks are equal."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import NamedTuple

from prefixcache import unpack_tokens
from prefixcache.replay import Trace, TraceRequest
from prefixcache.token_chunks import TOKEN_BYTES
from prefixcache_client.load.workloads.prompts import Prompts

_NUM_KEPT_BLOCKS = 8192


class _Size(NamedTuple):
    """How long a prompt becomes."""

    num_whole_blocks: int
    num_tail_tokens: int
    """Of the block after them; or of none, when the recording has no number for an unfinished block."""


class RecordedPrompts:
    """Turns the requests of one trace, in their order, into token ids.

    Equal blocks behind equal blocks become equal tokens, and different blocks tokens of which the first, or
    the second, is different. So is what has another model or salt. Tokens in the trace stay as they are.
    """

    def __init__(self, trace: Trace, prompts: Prompts, length_scale: float) -> None:
        """Blocks become `length_scale` times as long, at least a token; requires 1 for a trace of tokens.

        Keeps a number for each block that it has seen, and the tokens of the latest 8,192.
        """
        assert length_scale == 1 or not trace.has_tokens
        self._has_tokens = trace.has_tokens
        self._recorded_block_tokens = trace.block_size
        self._block_tokens = max(1, round(trace.block_size * length_scale))
        self._prompts = prompts
        self._number_of_block: dict[tuple[str, str, int], int] = {}
        self._block = lru_cache(maxsize=_NUM_KEPT_BLOCKS)(self._new_block)
        self._num_requests = 0

    def num_tokens(self, request: TraceRequest) -> int:
        """The length of a prompt. O(1)."""
        if self._has_tokens:
            return len(request.prompt_ids) // TOKEN_BYTES
        size = self._size(request, len(request.prompt_ids) // TOKEN_BYTES)
        return size.num_whole_blocks * self._block_tokens + size.num_tail_tokens

    def num_public_tokens(self, request: TraceRequest) -> int:
        """How many of the first tokens other tenants may share. O(1)."""
        if self._has_tokens:
            return request.num_public_ids
        return min(request.num_public_ids * self._block_tokens, self.num_tokens(request))

    def tokens(self, request: TraceRequest) -> list[int]:
        """The prompt of the next request. O(tokens)."""
        ids = unpack_tokens(request.prompt_ids)
        self._num_requests += 1
        if self._has_tokens:
            return ids
        size = self._size(request, len(ids))
        tokens: list[int] = []
        for an_id in ids[: size.num_whole_blocks]:
            tokens.extend(self._block(self._number(request, an_id)))
        if size.num_tail_tokens and size.num_whole_blocks < len(ids):
            last = self._number(request, ids[size.num_whole_blocks])
            tokens.extend(self._block(last)[: size.num_tail_tokens])
        elif size.num_tail_tokens:
            tokens.extend(self._prompts.run("tail", self._num_requests, size.num_tail_tokens))
        return tokens

    def _size(self, request: TraceRequest, num_ids: int) -> _Size:
        recorded = self._recorded_block_tokens
        num_tokens = request.num_prompt_tokens or num_ids * recorded
        num_whole_blocks = min(num_ids, num_tokens // recorded)
        num_tail_tokens = round((num_tokens - num_whole_blocks * recorded) * self._block_tokens / recorded)
        return _Size(num_whole_blocks, num_tail_tokens if num_whole_blocks else max(1, num_tail_tokens))

    def _number(self, request: TraceRequest, an_id: int) -> int:
        """Counts blocks in the order of their coming, so that the first tokens of siblings are different."""
        numbers = self._number_of_block
        return numbers.setdefault((request.namespace.model, request.namespace.salt, an_id), len(numbers))

    def _new_block(self, number: int) -> array[int]:
        return array("I", self._prompts.run("block", number, self._block_tokens))
