"""One engine turn after another: schedule, copy, run, sample, apply."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from prefixcache import PrefixCache
from prefixcache_worker.attention.approximation import EXACT
from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.by_window import attention_by_window, distinct_windows, rows_per_layer
from prefixcache_worker.attention.cpu import CpuAttention
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.planner import AttentionPlanner
from prefixcache_worker.attention.sparse import SparseBackend
from prefixcache_worker.engine.admissibility import check_admissible
from prefixcache_worker.engine.answer import Answer
from prefixcache_worker.engine.assembler import Assembler
from prefixcache_worker.engine.batch import Batch, ScheduledSpan, build_batch
from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.engine.counters import Counters
from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.logprobs import token_logprobs
from prefixcache_worker.engine.observer import (
    GuardedObserver,
    NewTokens,
    Observer,
    Outcome,
    RequestEnd,
    StepTimes,
)
from prefixcache_worker.engine.prefix_book import PrefixBook
from prefixcache_worker.engine.publishing import advance
from prefixcache_worker.engine.request import Event, Failure, Request, TokenLogprobs, Usage
from prefixcache_worker.engine.sampler import sample, take_rows
from prefixcache_worker.engine.scheduler import Refusal, Scheduler
from prefixcache_worker.engine.sequence import Sequence
from prefixcache_worker.engine.stats import EngineStats
from prefixcache_worker.engine.step_watchers import StepWatchers
from prefixcache_worker.engine.tier_mover import TierMover
from prefixcache_worker.engine.usage_ledger import UsageLedger
from prefixcache_worker.errors import NotFiniteError, PrefixNotKeptError
from prefixcache_worker.model.model import Model

logger = logging.getLogger(__name__)


class Output(NamedTuple):
    """Something that happened to a request."""

    key: Hashable
    event: Event


class Engine:
    """Runs requests on one model over one pool. Not thread-safe: one thread steps it.

    Requests go by keys that the caller chooses, not by their ids: ids are the clients' own, and two
    clients may choose the same.

    Every request that `add` took ends with exactly one `Completion` or `Failure` from `step`, or
    with `cancel`; after either its private blocks are free or cached.
    """

    def __init__(
        self,
        *,
        model: Model,
        cache: CacheScheme[Any],
        kv_store: KvStore,
        token_bytes: Callable[[int], bytes],
        eos_token_ids: tuple[int, ...],
        config: EngineConfig,
        attention: AttentionBackend = CpuAttention,
        tier_mover: TierMover | None = None,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        """`clock` is the cache's too."""
        assert (cache.num_blocks, cache.block_size) == (kv_store.num_blocks, kv_store.block_size)
        self.cache = cache
        self.kv_store = kv_store
        self.config = config
        self._model = model
        self._shape = kv_store.layout.shape
        assert self._shape == config.approximation.shape(model.attention_shape)
        self._approximation = config.approximation.of(model.attention_shape)
        sparse_reads = config.approximation.sparse_reads
        self._attention = attention if sparse_reads is None else SparseBackend(attention, sparse_reads)
        self._planner = AttentionPlanner(
            cache.block_size, distinct_windows(self._shape), share=config.share_reads
        )
        self._tier_mover = tier_mover
        self._token_bytes = token_bytes
        self._eos_token_ids = frozenset(eos_token_ids)
        self._clock = clock
        self._observer = GuardedObserver(observer)
        self._scheduler = Scheduler(
            cache,
            max_batch_tokens=config.max_batch_tokens,
            max_running=config.max_running,
            max_overtakes=config.max_overtakes,
        )
        self._answers: dict[Hashable, Answer] = {}
        self._counters = Counters()
        self.watchers = StepWatchers()
        self.prefixes = PrefixBook(cache, clock=clock)
        self.ledger = UsageLedger()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return any(not answer.is_paused for answer in self._answers.values())

    @property
    def has_requests(self) -> bool:
        """Whether any request lives, be it paused. Any thread may ask, unlike all else here."""
        return bool(self._answers)

    @property
    def max_total_tokens(self) -> int:
        """Most tokens one sequence can have here: the context, or the pool if that is smaller."""
        return min(self.config.context_length, self.cache.num_blocks * self.cache.block_size)

    def check_admissible(self, request: Request) -> None:
        """Raise InvalidRequestError if the request could never run. Reads settings only: any thread."""
        check_admissible(request, self.config, max_total_tokens=self.max_total_tokens)

    def add(self, key: Hashable, request: Request, *, arrived: float | None = None) -> None:
        """Queue a request under a key that no live one has. Takes no block yet.

        Raises InvalidRequestError if it could never run.
        """
        assert key not in self._answers
        self.check_admissible(request)
        if not self.cache.shares_prefixes:  # then nobody waits to find what another is computing
            request = replace(request, use_cache=False)
        sequence = self._new_sequence(key, request, index=0)
        arrived = self._clock() if arrived is None else arrived
        self._answers[key] = Answer(key, request, arrived, [sequence])
        self._scheduler.add(sequence)

    def cancel(self, key: Hashable) -> bool:
        """Drop a request at any point; False if it is not alive. Its blocks are given back at once."""
        if not self._drop(key, Outcome.CANCELLED):
            return False
        self._counters.cancelled += 1
        return True

    def pause(self, key: Hashable) -> None:
        """Give a request no more steps until `resume`; it keeps its blocks until others need them.

        A no-op if it is not alive, or paused.
        """
        for sequence in self._sequences(key):
            self._scheduler.pause(sequence)

    def resume(self, key: Hashable) -> None:
        """Let a paused request go on. A no-op if it is not alive, or not paused."""
        for sequence in self._sequences(key):
            self._scheduler.resume(sequence)

    def preempt(self, key: Hashable) -> None:
        """Put the request's running sequences back into the queue. For tests."""
        for sequence in reversed(self._answers[key].sequences):
            if sequence.handle is not None:
                self._scheduler.preempt(sequence)

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Run the next tokens of as many sequences as fit, and say what came of it.

        If the model fails, the requests of this step fail, and the others go on. A request for which
        there is no room whoever gives way fails alone: with OutOfBlocksError, or QuotaExceededError at
        its tenant's ceiling; with NotPublisherError if it may not declare tokens public.
        """
        self.watchers.begun()
        begun = self._clock()
        schedule = self._scheduler.schedule()
        if self._tier_mover is not None:
            self._tier_mover.run()
        outputs = self._refuse(schedule.refusals)
        spans = [span for span in schedule.spans if span.sequence.key in self._answers]
        outputs += self._run(spans, begun)
        self.watchers.ended()
        return outputs

    def _run(self, scheduled: list[ScheduledSpan], begun: float) -> list[Output]:
        """The step itself: copies, one forward, and what follows from it."""
        if not scheduled:
            return []
        self._counters.steps += 1
        self._note_starts(scheduled, begun)
        self._counters.note_peaks(self.cache.stats(), num_running=len(self._scheduler.running))
        try:
            self.watchers.chosen(scheduled)
            batch = build_batch(scheduled, self._planner, device=self.kv_store.device)
            planned = self._clock()
            self.watchers.prepared(batch)
            self._execute_copies(batch)
            attention = attention_by_window(batch.plans, self.kv_store, self._attention)
            logits = self._model.forward(batch.forward, attention)
            modelled = self._clock()
        except Exception as error:
            logger.exception("step failed; the requests in it are given up")
            return self._fail({span.sequence.key for span in scheduled}, error)
        self.watchers.computed()
        self._counters.note_rows(*rows_per_layer(batch.plans, self._shape, self._approximation.sparse_reads))
        outputs = self._apply(batch, logits)
        self._observer.stepped(
            StepTimes(
                num_sequences=len(scheduled),
                num_tokens=sum(span.num_tokens for span in scheduled),
                seconds=self._clock() - begun,
                plan_seconds=planned - begun,
                model_seconds=modelled - planned,
            )
        )
        return outputs

    def fail_all(self, error: Exception) -> list[Output]:
        """Give up every live request, after an error that leaves nothing to go on with."""
        return self._fail(set(self._answers), error)

    def stats(self, *, reset_peaks: bool = False) -> EngineStats:
        """All counts now. With `reset_peaks` the peaks start anew after this reading."""
        cache, scheduler = self.cache.stats(), self._scheduler
        self._counters.note_peaks(cache, num_running=len(scheduler.running))
        stats = self._counters.stats(
            cache,
            scheduler,
            block_bytes=self.kv_store.block_bytes,
            block_size=self.cache.block_size,
            life=self.cache.block_life() if isinstance(self.cache, PrefixCache) else None,
        )
        if reset_peaks:
            self._counters.reset_peaks(cache, num_running=len(scheduler.running))
        return stats

    def answers(self) -> Iterable[Answer]:
        """All live requests, and what they have cost until now."""
        for answer in self._answers.values():
            answer.charge_blocks(self._clock())
        return self._answers.values()

    def check(self) -> None:
        """Raise AssertionError if any invariant is broken. For tests."""
        self.cache.check()
        self.prefixes.check()
        self._scheduler.check()
        queued = {*self._scheduler.waiting, *self._scheduler.running}
        assert queued == {s for answer in self._answers.values() for s in answer.sequences}
        if not self._answers:
            assert self.cache.stats().num_live == 0, "blocks are live although no request is"

    def _new_sequence(self, key: Hashable, request: Request, index: int) -> Sequence:
        limit = len(request.prompt_token_ids) + request.stop_conditions.max_tokens
        stop = request.stop_conditions
        assembler = Assembler(self._token_bytes, stop.stop, include_stop=stop.include_stop)
        return Sequence(
            key, request, index, assembler, min(limit, self.max_total_tokens), self._eos_token_ids
        )

    def _note_starts(self, scheduled: list[ScheduledSpan], now: float) -> None:
        """Count a prompt's hit once, when it first runs; coming back after a preemption is no hit."""
        for answer in self._answers.values():
            answer.count_blocks(now)
        for sequence, _ in scheduled:
            answer = self._answers[sequence.key]
            if answer.started is None:
                answer.start(now, sequence.running_handle)
                self._counters.note_start(answer)
                self._observer.started(now - answer.arrived)

    def _fail_what_is_no_number(self, batch: Batch, logits: torch.Tensor) -> list[Output]:
        """Give up the requests with a row of logits from which nothing can be drawn."""
        is_number = logits.amax(dim=1).isfinite().tolist()  # NaN wins over every maximum
        if all(is_number):
            return []
        keys = {key for key, is_right in zip(batch.logit_keys, is_number, strict=True) if not is_right}
        logger.error("the model gave %d requests scores that are no numbers; they are given up", len(keys))
        sentence = "the model's scores for this request are no numbers; "
        advice = "use fp32 for --weights and --kv-dtype, or check the model"
        return self._fail(keys, NotFiniteError(sentence + advice))

    def _note_approximations(self, batch: Batch) -> None:
        if self._approximation == EXACT:
            return
        sparse_reads, block_size = self._approximation.sparse_reads, self.cache.block_size
        for (sequence, _), span in zip(batch.spans, batch.plans[0].spans, strict=True):
            if self._approximation.leaves_out(span, block_size):
                self._answers[sequence.key].is_approximate = True
            is_sparse = sparse_reads is not None and sparse_reads.is_sparse(span, block_size)
            if is_sparse and sequence.num_exact_tokens is None:
                sequence.num_exact_tokens = sequence.num_computed_tokens

    def _execute_copies(self, batch: Batch) -> None:
        for sequence, _ in batch.spans:
            handle = sequence.running_handle
            if handle.copies:
                self.kv_store.copy_blocks(handle.copies)
                self.cache.complete_copies(handle)

    def _apply(self, batch: Batch, logits: torch.Tensor) -> list[Output]:
        """Take over what the step computed: rows and what is said of prompts first, then tokens."""
        sampled: list[Sequence] = []
        rows: list[int] = []
        end = 0
        outputs = self._fail_what_is_no_number(batch, logits)
        self._note_approximations(batch)
        for (sequence, num_tokens), num_logit_rows in zip(batch.spans, batch.num_logit_rows, strict=True):
            start, end = end, end + num_logit_rows
            if sequence.key not in self._answers:
                continue
            scores = sequence.score_prompt(logits[start:end])
            if scores is not None:
                outputs.append(Output(sequence.key, scores))
            advance(sequence, num_tokens, self.cache, self._shape.reach)
            if sequence.num_uncomputed_tokens == 0 and sequence.request.kept_as is not None:
                outputs += self._end_choice(sequence)
            elif sequence.num_uncomputed_tokens == 0:
                choices = [sequence, *self._fork_choices(sequence)]
                sampled += choices
                rows += [end - 1] * len(choices)
        if sampled:
            outputs += self._take_tokens(sampled, take_rows(logits, rows))
        return outputs

    def _fork_choices(self, parent: Sequence) -> list[Sequence]:
        """The other choices of a request whose prompt has just been computed."""
        forks = [
            self._new_sequence(parent.key, parent.request, 1 + i) for i in range(parent.num_choices_to_fork)
        ]
        for fork in forks:
            self._scheduler.add_fork(parent, fork)
        self._answers[parent.key].sequences += forks
        return forks

    def _take_tokens(
        self,
        sampled: list[Sequence],
        logits: torch.Tensor,  # [len(sampled), vocabulary_size] float32
    ) -> list[Output]:
        tokens = sample(logits, [sequence.sampling for sequence in sampled])
        scores = token_logprobs(logits, tokens, [sequence.request.num_logprobs for sequence in sampled])
        new_tokens = NewTokens(self._clock())
        outputs = [
            output
            for sequence, token, score in zip(sampled, tokens, scores, strict=True)
            if sequence.key in self._answers  # else another choice of it has just failed
            for output in self._take_token(sequence, token, score, new_tokens)
        ]
        self._observer.got_tokens(new_tokens)
        return outputs

    def _take_token(
        self, sequence: Sequence, token: int, score: TokenLogprobs | None, new_tokens: NewTokens
    ) -> list[Output]:
        answer = self._answers[sequence.key]
        self._counters.generated_tokens += 1
        answer.note_token(sequence, new_tokens)
        delta = sequence.take(token, score)
        outputs = [Output(answer.key, delta)]
        if delta.finish_reason is not None:
            outputs += self._end_choice(sequence)
        elif (error := sequence.constraint_error) is not None:
            outputs += self._fail({sequence.key}, error)
        return outputs

    def _end_choice(self, sequence: Sequence) -> list[Output]:
        """A choice is complete; when it was the last one, so is the answer."""
        answer = self._answers[sequence.key]
        self._scheduler.retire(sequence)
        answer.end_choice(sequence)
        return [] if answer.sequences else [self._complete(answer)]

    def _complete(self, answer: Answer) -> Output:
        """Nothing has been allocated since the answer was published: what it is to keep is there."""
        now, prefix = self._clock(), None
        if answer.request.kept_as is not None:
            try:
                prefix = self.prefixes.keep(answer.request.kept_as)
            except PrefixNotKeptError as error:
                return self._fail({answer.key}, error)[0]
        del self._answers[answer.key]
        self._counters.finished += 1
        answer.charge_blocks(now)
        completion = answer.completion(ended=now, prefix=prefix)
        self._tell_end(answer, Outcome.FINISHED, completion.usage, now)
        return Output(answer.key, completion)

    def _refuse(self, refusals: list[Refusal]) -> list[Output]:
        """Give up the requests of sequences that the scheduler has dropped."""
        error_by_key: dict[Hashable, Exception] = {}
        for sequence, error in refusals:
            self._answers[sequence.key].end_choice(sequence)
            error_by_key.setdefault(sequence.key, error)  # one for all choices
        return [output for key, error in error_by_key.items() for output in self._fail({key}, error)]

    def _fail(self, keys: set[Hashable], error: Exception) -> list[Output]:
        for key in keys:
            self._drop(key, Outcome.FAILED)
        self._counters.failed += len(keys)
        return [Output(key, Failure(error)) for key in keys]

    def _sequences(self, key: Hashable) -> list[Sequence]:
        return self._answers[key].sequences if key in self._answers else []

    def _drop(self, key: Hashable, outcome: Outcome) -> bool:
        if (answer := self._answers.pop(key, None)) is None:
            return False
        now = self._clock()
        answer.charge_blocks(now)
        for sequence in answer.sequences:
            self._scheduler.retire(sequence)
        self._tell_end(answer, outcome, answer.usage(), now)
        return True

    def _tell_end(self, answer: Answer, outcome: Outcome, usage: Usage, now: float) -> None:
        """Enter a request that has ended into the ledger, and tell the observer of it."""
        tenant_tokens = self.ledger.add(answer.tenant, usage, is_finished=outcome is Outcome.FINISHED)
        first_token = answer.first_token
        decode_seconds = None if first_token is None else now - first_token
        self._observer.ended(
            RequestEnd(outcome, now - answer.arrived, decode_seconds, answer.tenant, usage, tenant_tokens)
        )
