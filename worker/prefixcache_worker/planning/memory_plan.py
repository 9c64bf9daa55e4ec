"""A plan for one model, one memory and one load: what fits, what sharing saves, what to ask a worker for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prefixcache_worker.attention.kv_format import KvFormat, choose_format
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.memory_size import format_memory
from prefixcache_worker.planning.kv_plan import (
    SCHEMES,
    KvPlan,
    RequestLoad,
    propose_block_size,
    propose_pool,
)
from prefixcache_worker.planning.planned_model import PlannedModel
from prefixcache_worker.settings import KV_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Everything that `prefixcache plan` says."""

    model: PlannedModel
    load: RequestLoad
    memory_bytes: int
    weight_bytes: int
    headroom: float
    """Share of the pool that a worker allocates on top of what it is asked for."""
    kv_format: KvFormat
    block_size: int
    peak_requests: int | None
    """None: as many as fit."""

    def __post_init__(self) -> None:
        if self.kv_bytes < self.plan.block_bytes:
            raise ConfigError(
                f"--memory: of {format_memory(self.memory_bytes)}, weights of "
                f"{format_memory(self.weight_bytes)} leave {format_memory(max(0, self.kv_bytes))}, which is "
                f"less than one KV block of {format_memory(self.plan.block_bytes)}; give more memory, or "
                "fewer bits for weights and KV"
            )
        limit = self.model.context_length
        if limit is not None and self.load.longest_tokens > limit:
            raise ConfigError(
                f"--tokens: {self.load.longest_tokens} are more than the {limit} that the model knows; "
                "give less"
            )

    @property
    def kv_bytes(self) -> int:
        """What the weights leave."""
        return self.memory_bytes - self.weight_bytes

    @property
    def kv_bytes_before_headroom(self) -> int:
        """What a worker may be asked for, so that its headroom fits too."""
        return math.floor(self.kv_bytes / (1 + self.headroom))

    @property
    def plan(self) -> KvPlan:
        return self._plan_in(self.kv_format)

    def plans(self) -> dict[str, KvPlan]:
        """The plan in every KV format that the model's heads allow, by the format's name."""
        formats = [
            choose_format(dtype, None, self.model.shape)
            for dtype in KV_DTYPES
            if dtype != "int4" or self.model.shape.head_dim % 2 == 0
        ]
        if self.kv_format not in formats:
            formats.append(self.kv_format)
        return {kv_format.name: self._plan_in(kv_format) for kv_format in formats}

    @property
    def num_planned_requests(self) -> int:
        """At the peak: what was asked for, or what fits with sharing where the pool is 1.5 times that."""
        if self.peak_requests is not None:
            return self.peak_requests
        num_blocks = self.kv_bytes_before_headroom // self.plan.block_bytes
        low, high = 1, 2 * num_blocks  # a request has at least one block; bisect for the last that fits
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._pool(middle) <= num_blocks else (low, middle - 1)
        return low

    @property
    def proposed_blocks(self) -> int:
        """`--kv-blocks`: for the peak and half as much again, or what there is room for."""
        return min(
            self._pool(self.num_planned_requests), self.kv_bytes_before_headroom // self.plan.block_bytes
        )

    @property
    def fits(self) -> bool:
        """Whether the proposal is as large as the peak would have it."""
        return self.proposed_blocks >= self._pool(self.num_planned_requests)

    @property
    def proposed_block_size(self) -> int:
        return propose_block_size(self.load)

    def saved_blocks(self, num_requests: int) -> int:
        """Blocks that so many requests need not have, since their beginning is shared."""
        return self.plan.blocks("paged", num_requests) - self.plan.blocks("shared", num_requests)

    def as_json(self) -> dict[str, object]:
        """The figures. Bytes, tokens, blocks and requests are integers; None: any number."""
        plan, shape = self.plan, self.model.shape
        return {
            "model": self.model.name,
            "num_layers": shape.num_layers,
            "num_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "memory_bytes": self.memory_bytes,
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "headroom": self.headroom,
            "kv_format": self.kv_format.name,
            "token_bytes": plan.token_bytes,
            "block_size": self.block_size,
            "block_bytes": plan.block_bytes,
            "longest_tokens": self.load.longest_tokens,
            "mean_tokens": self.load.mean_tokens,
            "longest_request_bytes": self.load.longest_tokens * plan.token_bytes,
            "formats": {
                name: {
                    "token_bytes": other.token_bytes,
                    "requests": {scheme: other.num_requests(scheme, self.kv_bytes) for scheme in SCHEMES},
                }
                for name, other in self.plans().items()
            },
            "schemes": {
                scheme: {
                    "request_bytes": plan.request_blocks(scheme) * plan.block_bytes,
                    "unused_share": plan.unused_share(scheme),
                    "requests": plan.num_requests(scheme, self.kv_bytes),
                    "requests_with_headroom": plan.num_requests(scheme, self.kv_bytes_before_headroom),
                }
                for scheme in SCHEMES
            },
            "sharing": {
                "prefix_tokens": self.load.prefix_tokens,
                "requests": self.num_planned_requests,
                "shared_blocks": plan.shared_blocks,
                "saved_bytes": self.saved_blocks(self.num_planned_requests) * plan.block_bytes,
            },
            "proposal": {
                "peak_requests": self.num_planned_requests,
                "fits": self.fits,
                "kv_blocks": self.proposed_blocks,
                "kv_headroom": self.headroom,
                "block_size": self.proposed_block_size,
            },
        }

    def _pool(self, peak_requests: int) -> int:
        return propose_pool(self.plan, "shared", peak_requests)

    def _plan_in(self, kv_format: KvFormat) -> KvPlan:
        return KvPlan(shape=self.model.shape, kv_format=kv_format, block_size=self.block_size, load=self.load)


def plan_memory(
    model: PlannedModel,
    load: RequestLoad,
    *,
    memory_bytes: int,
    weight_bytes: int,
    headroom: float,
    kv_format: KvFormat,
    block_size: int | None = None,
    peak_requests: int | None = None,
) -> MemoryPlan:
    """The plan; without a `block_size`, in the one it proposes. Raises ConfigError when nothing fits."""
    return MemoryPlan(
        model=model,
        load=load,
        memory_bytes=memory_bytes,
        weight_bytes=weight_bytes,
        headroom=headroom,
        kv_format=kv_format,
        block_size=propose_block_size(load) if block_size is None else block_size,
        peak_requests=peak_requests,
    )
