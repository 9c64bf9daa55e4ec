"""Workers that keep KV in different ways, taken through the same bursts in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.progress import Progress, TaskID

from prefixcache_client.answers import ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.burst import Burst
from prefixcache_client.command_line.schemes_load import SchemesLoad
from prefixcache_client.command_line.schemes_result import BatchResult, SchemeResult, SchemesResult
from prefixcache_client.errors import PrefixCacheClientError


class Scheme(NamedTuple):
    """A way to keep KV: the worker's bookkeeping, and the format of the rows."""

    bookkeeping: str
    kv_dtype: str | None = None
    """None leaves it as the worker has it."""

    def worker_arguments(self) -> list[str]:
        """What makes a worker keep KV so."""
        return ["--scheme", self.bookkeeping, *(["--kv-dtype", self.kv_dtype] if self.kv_dtype else [])]


class Variant(NamedTuple):
    """One of those that are compared."""

    name: str
    scheme: Scheme
    block_size: int


@dataclass(slots=True)
class _Worker:
    """A worker that is compared, and what it did so far."""

    variant: Variant
    client: AsyncClient
    info: ModelInfo
    num_fit: int
    first: Burst | None = None
    """Its very first request, alone."""
    bursts: dict[int, list[Burst]] = field(default_factory=dict)
    """By batch, one for each round."""
    num_seen_to_fit: int = 0
    """The most that ran together with nobody giving way."""

    def note(self, burst: Burst) -> None:
        """Every burst, whatever it was sent for."""
        if burst.num_preemptions == 0:
            self.num_seen_to_fit = max(self.num_seen_to_fit, burst.num_running)

    def result(self, load: SchemesLoad) -> SchemeResult:
        """All of it together. Requires: it has done everything."""
        assert self.first is not None
        info = self.info
        return SchemeResult(
            name=self.variant.name,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            pool_bytes=info.num_blocks * info.block_bytes,
            num_table_blocks=load.num_blocks(info.block_size),
            num_fit=self.num_fit,
            num_seen_to_fit=self.num_seen_to_fit,
            first_request_seconds=self.first.first_token_seconds,
            batches=[_batch_result(batch, bursts) for batch, bursts in self.bursts.items()],
        )


class SchemesComparison:
    """The plan of a comparison: which bursts, how often.

    Every round takes every worker through the same bursts, one worker at a time, while the others idle.
    """

    def __init__(
        self,
        load: SchemesLoad,
        *,
        batches: Sequence[int],
        num_rounds: int,
        seed: int,
        progress: Progress,
    ) -> None:
        self._load = load
        self._batches = batches
        self._num_rounds = num_rounds
        self._seed = seed
        self._num_bursts = 0  # a number for the seed of each, so that no prefix comes twice
        self._progress = progress

    async def run(self, addresses: Mapping[Variant, str]) -> SchemesResult:
        """Compare the workers. Raises PrefixCacheClientError when a pool cannot hold a single request."""
        async with AsyncExitStack() as stack:
            workers = []
            for variant, address in addresses.items():
                client = await stack.enter_async_context(AsyncClient(address))
                info = await client.model_info()
                if self._load.num_tokens > info.context_length:
                    raise PrefixCacheClientError(
                        f"{variant.name}: its memory holds {info.context_length:,} tokens, and a request has "
                        f"{self._load.num_tokens:,}; give more --kv-memory"
                    )
                workers.append(
                    _Worker(variant, client, info, self._load.num_fit(variant.scheme.bookkeeping, info))
                )
            await self._take_through(workers)
            return SchemesResult(
                model=workers[0].info.name,
                context_length=max(worker.info.context_length for worker in workers),
                load=self._load,
                num_rounds=self._num_rounds,
                schemes=[worker.result(self._load) for worker in workers],
            )

    async def _take_through(self, workers: Sequence[_Worker]) -> None:
        num_bursts = len(workers) * (1 + self._num_rounds * len(self._batches))
        bar = self._progress.add_task("bursts", total=num_bursts)
        for worker, burst in zip(workers, await self._bursts(workers, 1, bar), strict=True):
            worker.first = burst
        for _ in range(self._num_rounds):
            for batch in self._batches:
                for worker, burst in zip(workers, await self._bursts(workers, batch, bar), strict=True):
                    worker.bursts.setdefault(batch, []).append(burst)
        for worker in workers:
            num_to_fit = min(worker.num_fit, max(self._batches))
            if worker.num_seen_to_fit < num_to_fit:
                self._num_bursts += 1
                await self._burst(worker, num_to_fit, self._load.generating_more())

    async def _bursts(self, workers: Sequence[_Worker], batch: int, bar: TaskID) -> list[Burst]:
        """The same new prompts for each worker, one worker after the other."""
        self._num_bursts += 1
        bursts = []
        for worker in workers:
            bursts.append(await self._burst(worker, batch, self._load))
            self._progress.advance(bar)
        return bursts

    async def _burst(self, worker: _Worker, batch: int, load: SchemesLoad) -> Burst:
        seed = self._seed * 1_000_003 + self._num_bursts
        burst = await load.send(worker.client, load.prompts(batch, worker.info.vocabulary_size, seed))
        worker.note(burst)
        return burst


def _batch_result(batch: int, bursts: Sequence[Burst]) -> BatchResult:
    busiest = max(bursts, key=lambda burst: burst.num_running)
    return BatchResult(
        batch=batch,
        num_running=busiest.num_running,
        num_preemptions=max(burst.num_preemptions for burst in bursts),
        kv_bytes_per_request=busiest.kv_bytes / busiest.num_running,
        wasted_share=busiest.wasted_share,
        tokens_per_second=[burst.tokens_per_second for burst in bursts],
        first_token_seconds=[burst.first_token_seconds for burst in bursts],
    )
