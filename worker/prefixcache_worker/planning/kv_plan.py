"""The arithmetic of KV memory: bytes of a token, of a request, and how many requests fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prefixcache_worker.attention.kv_format import KvFormat
from prefixcache_worker.model.model import AttentionShape

SCHEMES = ("contiguous", "paged", "shared")
POOL_PER_PEAK = 1.5
"""Pool over what the load holds at its peak: the founding article's advice, so that what has ended can stay
cached and a burst finds room."""
USUAL_BLOCK_SIZES = (16, 32, 64)
MAX_TAIL_SHARE = 0.01
"""Of a request's tokens: so much may on average be unused at the end of its last block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """How long requests are. Tokens of prompt and answer together."""

    longest_tokens: int
    mean_tokens: int
    prefix_tokens: int = 0
    """So many at the beginning are the same in all requests; at most `mean_tokens`."""

    def __post_init__(self) -> None:
        assert 1 <= self.mean_tokens <= self.longest_tokens
        assert 0 <= self.prefix_tokens <= self.mean_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPlan:
    """What the KV of such requests takes, in one format and block size.

    - contiguous: each request has room for the longest one.
    - paged: each has the blocks that its own tokens need.
    - shared: the whole blocks of the common beginning are there once, and each has the others.
    """

    shape: AttentionShape
    kv_format: KvFormat
    block_size: int
    load: RequestLoad

    @property
    def token_bytes(self) -> int:
        """2 (keys and values) x layers x KV heads x head_dim x bytes of an element, and the row's scales."""
        return self.kv_format.block_bytes(self.shape, 1)

    @property
    def block_bytes(self) -> int:
        return self.kv_format.block_bytes(self.shape, self.block_size)

    @property
    def shared_blocks(self) -> int:
        """Whole blocks of the common beginning, of which a request still holds every row."""
        num_given_back = self.load.mean_tokens - self._held(self.load.mean_tokens)
        return max(0, self.load.prefix_tokens - num_given_back) // self.block_size

    def request_blocks(self, scheme: str) -> int:
        """Blocks that one more request takes."""
        if scheme == "contiguous":
            return -(-self.load.longest_tokens // self.block_size)
        blocks = self._blocks(self.load.mean_tokens)
        return blocks - self.shared_blocks if scheme == "shared" else blocks

    def blocks(self, scheme: str, num_requests: int) -> int:
        """Blocks that so many requests take together."""
        common = self.shared_blocks if scheme == "shared" and num_requests else 0
        return common + num_requests * self.request_blocks(scheme)

    def num_requests(self, scheme: str, num_bytes: int) -> int | None:
        """Requests that fit; None: any number, since all of each is shared."""
        num_blocks = num_bytes // self.block_bytes
        common = self.shared_blocks if scheme == "shared" else 0
        each = self.request_blocks(scheme)
        if num_blocks < common + each:
            return 0
        return (num_blocks - common) // each if each else None

    def unused_share(self, scheme: str) -> float:
        """Of the slots that a request takes by itself, those without a token of it."""
        blocks = self.request_blocks(scheme)
        if not blocks:
            return 0.0
        used = self._held(self.load.mean_tokens)
        if scheme == "shared":
            used -= self.shared_blocks * self.block_size
        return 1 - used / (blocks * self.block_size)

    def _held(self, num_tokens: int) -> int:
        """Tokens whose rows a sequence of so many holds.

        Where all layers have windows, whole blocks behind them are given back.
        """
        reach = self.shape.reach
        if reach is None:
            return num_tokens
        return min(num_tokens, reach.num_sinks + reach.size + self.block_size)

    def _blocks(self, num_tokens: int) -> int:
        return -(-self._held(num_tokens) // self.block_size)


def propose_block_size(load: RequestLoad) -> int:
    """The largest usual one that leaves little unused: half a block at the end of each request on average."""
    fitting = [size for size in USUAL_BLOCK_SIZES if size / 2 <= load.mean_tokens * MAX_TAIL_SHARE]
    return max(fitting, default=USUAL_BLOCK_SIZES[0])


def propose_pool(plan: KvPlan, scheme: str, peak_requests: int) -> int:
    """Blocks to ask for, before headroom, where so many requests run at the peak."""
    return math.ceil(POOL_PER_PEAK * plan.blocks(scheme, peak_requests))
