"""Audits every step while it runs: what it had to do beside what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch

from prefixcache import BlockId
from prefixcache_worker.attention.by_window import distinct_windows
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.diagnosis.copy_rules import OrderedCopies
from prefixcache_worker.diagnosis.count_rules import check_counts
from prefixcache_worker.diagnosis.read_rules import check_reads, compare_reads
from prefixcache_worker.diagnosis.start_rules import KnownLengths, check_batch
from prefixcache_worker.diagnosis.step_record import StepFinding, StepRecord
from prefixcache_worker.diagnosis.step_truth import SequenceTruth, StepTruth
from prefixcache_worker.diagnosis.write_rules import check_borders, check_sole_holders, check_writes
from prefixcache_worker.engine.batch import Batch, ScheduledSpan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.model.model import AttentionWindow

MAX_FINDINGS = 20
"""Told of one step; the others are of the same making."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What has been seen of the step that runs."""

    begun: float
    prepared: float | None = None
    computed: float | None = None
    truth: StepTruth | None = None
    """Its sequences are in batch order as soon as there is a batch."""
    copies: OrderedCopies | None = None
    plans: list[AttentionPlan] = field(default_factory=list)
    sparse_rows: list[int] = field(default_factory=list)
    """Rows read of each sequence that reads sparsely."""
    slots_of_layer: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    findings: list[StepFinding] = field(default_factory=list)

    def num_rows_read(self, window: AttentionWindow | None) -> int:
        """Rows that a layer of this window was told to read."""
        plans = [plan for plan in self.plans if plan.window == window]
        num_chosen = sum(self.sparse_rows) if window is None else 0
        return sum(item.num_rows for plan in plans for item in plan.items) + num_chosen


class StepAudit:
    """A `StepWatcher` and a `KvListener`: makes a `StepRecord` of every step that ran anything.

    What has to be comes from lengths, block tables and copies of the sequences' handles; what is comes from
    those who read and write the pool, who tell it in the act, from the batch that the model gets, and from
    the pool's own counts. Neither side is taken from what a plan says of itself.

    Use on the engine's thread. Cost: O(tokens * layers + blocks of the sequences) a step.
    """

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[StepRecord], None],
        *,
        fail: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`tell` gets every record; `fail` is called when there will be no more because the audit broke."""
        self._engine = engine
        self._tell = tell
        self._fail = fail
        self._clock = clock
        self._shape = engine.kv_store.layout.shape
        self._block_size = engine.cache.block_size
        self._sparse_reads = engine.config.approximation.sparse_reads
        self._lengths = KnownLengths()
        self._seen = _Seen(begun=clock())

    def start(self) -> None:
        """Watch from the next step on. Requires: nobody else listens to the pool."""
        assert self._engine.kv_store.listener is None
        self._engine.kv_store.listener = self
        self._engine.watchers.add(self)

    def stop(self) -> None:
        """Watch no more."""
        self._engine.watchers.remove(self)
        self._engine.kv_store.listener = None

    def planned(self, plan: AttentionPlan) -> None:
        self._seen.plans.append(plan)

    def sparsely_planned(self, spans: Sequence[SequenceSpan], num_top_blocks: int) -> None:
        reads = SparseReads(num_top_blocks)
        self._seen.sparse_rows += [reads.num_rows_read(span, self._block_size) for span in spans]

    def written(self, layer: int, slots: torch.Tensor) -> None:
        self._seen.slots_of_layer.setdefault(layer, []).append(slots)

    def begun(self) -> None:
        self._seen = _Seen(begun=self._clock())

    def chosen(self, spans: Sequence[ScheduledSpan]) -> None:
        self._seen.truth = self._truth([SequenceTruth.of(span) for span in spans])

    def prepared(self, batch: Batch) -> None:
        seen = self._seen
        seen.prepared = self._clock()
        assert seen.truth is not None
        of_sequence = {truth.sequence: truth for truth in seen.truth.sequences}
        seen.truth = self._truth([of_sequence[span.sequence] for span in batch.spans])
        seen.copies = OrderedCopies(self._engine.kv_store, seen.truth.sequences)
        seen.findings += check_batch(batch.forward, seen.truth.sequences)

    def computed(self) -> None:
        seen = self._seen
        if self._engine.kv_store.device.type == "cuda":
            torch.cuda.synchronize()
        seen.computed = self._clock()
        assert seen.truth is not None
        assert seen.copies is not None
        live = {sequence for answer in self._engine.answers() for sequence in answer.sequences}
        seen.findings += check_borders(seen.truth.sequences, self._block_size)
        seen.findings += self._lengths.check(seen.truth.sequences, live)
        seen.findings += seen.copies.check()
        seen.findings += self._check_writes(seen.truth)
        seen.findings += self._check_reads(seen.truth)

    def ended(self) -> None:
        seen, truth = self._seen, self._seen.truth
        if truth is None:
            return
        ended = self._clock()
        seen.findings += check_counts(self._engine)
        prepared, computed = seen.prepared or ended, seen.computed or ended
        self._tell(
            StepRecord(
                num_sequences=len(truth.sequences),
                num_tokens=truth.num_tokens,
                num_prompt_tokens=truth.num_prompt_tokens,
                rows_needed=round(truth.rows_needed),
                rows_read=round(truth.mean_of_layers(seen.num_rows_read)),
                rows_unshared=round(truth.rows_unshared),
                longest=truth.longest,
                num_block_copies=0 if seen.copies is None else len(seen.copies),
                seconds=ended - seen.begun,
                plan_seconds=prepared - seen.begun,
                model_seconds=computed - prepared,
                live_blocks=self._engine.cache.stats().num_live,
                findings=tuple(seen.findings[:MAX_FINDINGS]),
            )
        )

    def dropped(self) -> None:
        self.stop()
        self._fail()

    def _truth(self, sequences: Sequence[SequenceTruth]) -> StepTruth:
        return StepTruth(sequences, self._shape, self._block_size, self._sparse_reads)

    def _check_writes(self, truth: StepTruth) -> Iterator[StepFinding]:
        """Whether all layers write to the same right places, which nobody else holds."""
        written = {
            (self._shape.window(layer), tuple(torch.cat(parts).tolist()))
            for layer, parts in self._seen.slots_of_layer.items()
        }
        if not written:  # kernels write for themselves: what they were told
            written = {(plan.window, tuple(plan.slot_mapping())) for plan in self._seen.plans}
        for window, slots in written:
            yield from check_writes(slots, [*truth.dense(window), *truth.sparse(window)], self._block_size)
        block_ids = {BlockId(slot // self._block_size) for _, slots in written for slot in slots}
        yield from check_sole_holders(block_ids, self._engine)

    def _check_reads(self, truth: StepTruth) -> Iterator[StepFinding]:
        """Whether every sequence is read in every kind of layer, as far as it goes."""
        for plan in self._seen.plans:
            yield from check_reads(plan, truth.dense(plan.window))
        for sequence, num_read in zip_longest(truth.sparse(None), self._seen.sparse_rows, fillvalue=None):
            if sequence is not None:
                yield from compare_reads(sequence.request_id, truth.num_rows(sequence, None), num_read or 0)
        for window in set(distinct_windows(self._shape)) - {plan.window for plan in self._seen.plans}:
            for sequence in truth.dense(window):
                yield from compare_reads(sequence.request_id, truth.num_rows(sequence, window), 0)
