"""An engine stepped by hand, and the streams of tokens that the cases are written in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf

import torch
from support.dense_attention import dense_greedy
from support.poisoned_tiers import PoisonedTiers
from support.tiny_model import tiny_decoder

from prefixcache import CacheHandle, Namespace, NumWorthRestoring, TenantQuota
from prefixcache_worker.attention.approximation import EXACT, Approximation
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.calibration import calibrate
from prefixcache_worker.attention.kv_format import FP32, KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.constraint.constraint import Constraint
from prefixcache_worker.engine.cache_scheme import make_cache
from prefixcache_worker.engine.engine import Engine, Output
from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.observer import Observer
from prefixcache_worker.engine.prefix_book import PrefixOrder
from prefixcache_worker.engine.request import (
    Completion,
    Delta,
    Failure,
    FinishReason,
    PromptLogprobs,
    Request,
    SamplingParams,
    StopConditions,
    TokenLogprobs,
)
from prefixcache_worker.model.model import Model

PERIOD = 97
GREEDY = SamplingParams(temperature=0)


def stream(name: str, stop: int, start: int = 0) -> list[int]:
    """Tokens [start, stop) of a fixed stream; streams of different letters share no token below 1000."""
    first = 2 + PERIOD * "abcdesuvzx".index(name)
    return [first + i % PERIOD for i in range(start, stop)]


@cache
def reference_model() -> Model:
    return tiny_decoder()


def reference(prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy answer of the same model with plain attention: no engine, no pool, no cache."""
    return list(_reference(tuple(prompt), num_tokens))


@cache
def _reference(prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    return tuple(dense_greedy(reference_model(), list(prompt), num_tokens))


class HandEngine:
    """An engine over the tiny model that a test steps itself; checks every invariant after each step.

    Freed blocks are filled with NaN, so that a read of what nobody owns spoils the answer.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 16,
        model: Model | None = None,
        token_bytes: Callable[[int], bytes] = lambda token: b"",
        eos_token_ids: tuple[int, ...] = (),
        clock: Callable[[], float] | None = None,
        poison: float = float("nan"),
        kv_format: KvFormat = FP32,
        backend: str = "torch",
        scheme: str = "shared",
        approximation: Approximation = EXACT,
        quotas: Mapping[str, TenantQuota] | None = None,
        tiers: Sequence[int] = (),
        num_worth_restoring: NumWorthRestoring = len,
        observer: Observer | None = None,
        device: str = "cpu",
        max_pinned_share: float = 0.5,
        **limits: int,
    ) -> None:
        """`tiers`: how many blocks each holds, the nearest first."""
        self.model = model or reference_model()
        self.store = KvStore(
            approximation.shape(self.model.attention_shape),
            num_blocks=num_blocks,
            block_size=block_size,
            kv_format=kv_format,
            fixed_scales=calibrate(self.model, kv_format),
            with_summaries=approximation.sparse_reads is not None,
            device=device,
        )
        self.store.fill_blocks(range(num_blocks), poison)
        config = EngineConfig(approximation=approximation, **limits)
        self.cache = make_cache(
            scheme,
            num_blocks=num_blocks,
            block_size=block_size,
            max_total_tokens=config.context_length,
            tiers=[(f"tier {number}", size) for number, size in enumerate(tiers, start=1)],
            num_worth_restoring=num_worth_restoring,
            max_pinned_share=max_pinned_share,
            clock=clock or time.monotonic,
            on_free=lambda block_ids: self._poison(block_ids),
        )
        tier_mover = PoisonedTiers(self.cache, self.store, tiers, poison) if scheme == "shared" else None
        self._poison = tier_mover.poison if tier_mover else lambda ids: self.store.fill_blocks(ids, poison)
        for tenant, quota in (quotas or {}).items():
            self.cache.set_quota(tenant, quota)
        self.engine = Engine(
            model=self.model,
            cache=self.cache,
            kv_store=self.store,
            token_bytes=token_bytes,
            eos_token_ids=eos_token_ids,
            config=config,
            attention=choose_backend(backend, self.store),
            tier_mover=tier_mover,
            observer=observer,
            **({} if clock is None else {"clock": clock}),
        )
        self.prompt_logprobs: dict[str, list[TokenLogprobs | None]] = {}
        self.deltas: dict[str, list[Delta]] = {}
        self.completions: dict[str, Completion] = {}
        self.failures: dict[str, Exception] = {}
        self._num_requests = 0

    def add(
        self,
        prompt: list[int],
        max_tokens: int = 1,
        *,
        request_id: str = "",
        tenant: str = "t",
        salt: str = "",
        n: int = 1,
        sampling: SamplingParams = GREEDY,
        stop: tuple[str, ...] = (),
        stop_token_ids: tuple[int, ...] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        public: int = 0,
        use_cache: bool = True,
        priority: int = 0,
        ignore_eos: bool = False,
        constraint: Constraint | None = None,
        cache_priority: int = 0,
        cache_priority_seconds: float = inf,
        kept_as: PrefixOrder | None = None,
    ) -> str:
        self._num_requests += 1
        request_id = request_id or f"r{self._num_requests}"
        self.engine.add(
            request_id,
            Request(
                request_id=request_id,
                namespace=Namespace(model="tiny", tenant=tenant, salt=salt, is_publisher=True),
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
                stop_conditions=StopConditions(
                    max_tokens=max_tokens,
                    min_tokens=min_tokens,
                    stop=stop,
                    stop_token_ids=stop_token_ids,
                    include_stop=include_stop,
                    ignore_eos=ignore_eos,
                ),
                num_choices=n,
                num_public_tokens=public,
                use_cache=use_cache,
                num_logprobs=logprobs,
                num_prompt_logprobs=prompt_logprobs,
                priority=priority,
                constraint=constraint,
                cache_priority=cache_priority,
                cache_priority_seconds=cache_priority_seconds,
                kept_as=kept_as,
            ),
        )
        self.deltas[request_id] = []
        self.prompt_logprobs[request_id] = []
        return request_id

    def step(self) -> list[Output]:
        outputs = self.engine.step()
        self.engine.check()
        for request_id, event in outputs:
            assert request_id not in self.completions | self.failures, "an event after the last one"
            match event:
                case PromptLogprobs(logprobs):
                    assert not self.deltas[request_id], "the prompt comes first"
                    self.prompt_logprobs[request_id] += logprobs
                case Delta():
                    self.deltas[request_id].append(event)
                case Completion():
                    self.completions[request_id] = event
                case Failure(error):
                    self.failures[request_id] = error
        return outputs

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {max_steps} steps")

    def generate(self, prompt: list[int], max_tokens: int = 1, **options: object) -> list[int]:
        """Run one request to its end and return its tokens."""
        request_id = self.add(prompt, max_tokens, **options)  # type: ignore[arg-type]
        self.run()
        return self.tokens(request_id)

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return [t for delta in self.deltas[request_id] if delta.index == index for t in delta.token_ids]

    def logprobs(self, request_id: str, index: int = 0) -> list[TokenLogprobs]:
        return [s for delta in self.deltas[request_id] if delta.index == index for s in delta.logprobs]

    def text(self, request_id: str, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas[request_id] if delta.index == index)

    def finish_reason(self, request_id: str, index: int = 0) -> FinishReason | None:
        return [d.finish_reason for d in self.deltas[request_id] if d.index == index][-1]

    def num_cached(self, request_id: str) -> int:
        return self.completions[request_id].usage.cached_tokens

    def num_restored(self, request_id: str) -> int:
        return self.completions[request_id].usage.restored_tokens

    def match(self, prompt: Iterable[int], *, tenant: str = "t", salt: str = "") -> int:
        """Tokens the cache could serve for a prompt now."""
        return self.cache.match(list(prompt), Namespace(model="tiny", tenant=tenant, salt=salt)).num_tokens

    def handle(self, request_id: str, index: int = 0) -> CacheHandle:
        """The live handle of a running choice."""
        for sequence in self.engine._scheduler.running:
            if sequence.request.request_id == request_id and sequence.index == index:
                return sequence.running_handle
        raise AssertionError(f"{request_id}/{index} does not run")

    def block_bytes(self, block_id: int) -> torch.Tensor:
        """A copy of one block's rows."""
        rows = slice(block_id * self.cache.block_size, (block_id + 1) * self.cache.block_size)
        return torch.stack([self.store.keys.rows[:, rows], self.store.values.rows[:, rows]]).clone()
