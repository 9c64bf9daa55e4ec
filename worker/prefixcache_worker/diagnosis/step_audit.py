"""Audits every step while it runs: what it had to do beside what it did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.by_window import distinct_windows
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.diagnosis.read_rules import check_reads, compare_reads
from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding, StepRecord
from prefixcache_worker.diagnosis.step_truth import SequenceTruth, num_distinct_rows
from prefixcache_worker.diagnosis.write_rules import check_borders, check_sole_holders, check_writes
from prefixcache_worker.engine.batch import Batch, ScheduledSpan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.sequence import Sequence as EngineSequence
from prefixcache_worker.model.model import AttentionWindow

MAX_FINDINGS = 20
"""Told of one step; the others are of the same making."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What has been seen of the step that runs."""

    begun: float
    prepared: float | None = None
    computed: float | None = None
    truths: list[SequenceTruth] = field(default_factory=list)
    """In batch order as soon as there is a batch."""
    plans: list[AttentionPlan] = field(default_factory=list)
    sparse_rows: list[int] = field(default_factory=list)
    """Rows read of each sequence that reads sparsely."""
    slots_of_layer: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    sources: dict[BlockCopy, list[torch.Tensor]] = field(default_factory=dict)
    """What was to be copied, as it was before: once copied, it may be overwritten."""
    findings: list[StepFinding] = field(default_factory=list)


class StepAudit:
    """A `StepWatcher` and a `KvListener`: makes a `StepRecord` of every step that ran anything.

    What has to be comes from lengths, block tables and copies of the sequences' handles; what is comes from
    those who read and write the pool, who tell it in the act, from the batch that the model gets, and from
    the pool's own counts. Neither side is taken from what a plan says of itself.

    Use on the engine's thread.
    """

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[StepRecord], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._clock = clock
        self._shape = engine.kv_store.layout.shape
        self._block_size = engine.cache.block_size
        self._sparse_reads = engine.config.approximation.sparse_reads
        self._lengths: dict[EngineSequence, tuple[object, int]] = {}
        """Rows that each had after its last step, and the handle that it had them in."""
        self._seen = _Seen(begun=clock())

    def start(self) -> None:
        """Watch from the next step on."""
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
        self._seen.truths = [SequenceTruth.of(span) for span in spans]

    def prepared(self, batch: Batch) -> None:
        self._seen.prepared = self._clock()
        truth_of = {truth.sequence: truth for truth in self._seen.truths}
        self._seen.truths = [truth_of[span.sequence] for span in batch.spans]  # in batch order from here on
        self._seen.findings += self._check_batch(batch)
        self._seen.sources = {
            copy: [tensor.clone() for tensor in self._rows_of(copy.source, copy.num_slots)]
            for truth in self._seen.truths
            for copy in truth.copies
        }

    def computed(self) -> None:
        if self._engine.kv_store.device.type == "cuda":
            torch.cuda.synchronize()
        self._seen.computed = self._clock()
        self._seen.findings += check_borders(self._seen.truths, self._block_size)
        self._seen.findings += self._check_starts()
        self._seen.findings += self._check_copies()
        self._seen.findings += self._check_writes()
        self._seen.findings += self._check_reads()

    def ended(self) -> None:
        if not self._seen.truths:
            return
        ended = self._clock()
        self._seen.findings += self._check_counts()
        by_window = [self._rows(window) for window in map(self._shape.window, range(self._shape.num_layers))]
        needed, read, unshared = (round(sum(rows) / len(by_window)) for rows in zip(*by_window, strict=True))
        has_run = self._seen.computed is not None
        prepared, computed = self._seen.prepared or ended, self._seen.computed or ended
        self._tell(
            StepRecord(
                num_sequences=len(self._seen.truths),
                num_tokens=sum(truth.num_tokens for truth in self._seen.truths),
                num_prompt_tokens=sum(truth.num_prompt_tokens for truth in self._seen.truths),
                rows_needed=needed,
                rows_read=read if has_run else 0,
                rows_unshared=unshared,
                longest=max(truth.length for truth in self._seen.truths),
                num_block_copies=sum(len(truth.copies) for truth in self._seen.truths),
                seconds=ended - self._seen.begun,
                plan_seconds=prepared - self._seen.begun,
                model_seconds=computed - prepared,
                live_blocks=self._engine.cache.stats().num_live,
                findings=tuple(self._seen.findings[:MAX_FINDINGS]),
            )
        )

    def _check_batch(self, batch: Batch) -> Iterator[StepFinding]:
        """Whether the model gets each sequence's next tokens, at their positions."""
        token_ids, positions = batch.forward.token_ids.tolist(), batch.forward.positions.tolist()
        first = 0
        for truth in self._seen.truths:
            part = slice(first, first + truth.num_tokens)
            first += truth.num_tokens
            if positions[part] != list(range(truth.start, truth.length)):
                found = positions[part][0] if positions[part] else -1
                sentence = f"{truth.request_id} goes on at row {truth.start}, and the model is told {found}"
                yield StepFinding(StepFault.START, truth.request_id, truth.start, found, sentence)
            elif token_ids[part] != truth.sequence.token_ids[truth.start : truth.length]:
                sentence = (
                    f"{truth.request_id}: the model gets other tokens than those from row {truth.start} on"
                )
                yield StepFinding(StepFault.START, truth.request_id, truth.start, truth.start, sentence)

    def _check_starts(self) -> Iterator[StepFinding]:
        """Whether each goes on where its last step ended, as far as that was watched."""
        lengths: dict[EngineSequence, tuple[object, int]] = {}
        for answer in self._engine.answers():
            for sequence in answer.sequences:
                if sequence in self._lengths:
                    lengths[sequence] = self._lengths[sequence]
        for truth in self._seen.truths:
            handle, length = lengths.get(truth.sequence, (None, 0))
            if handle is truth.sequence.handle and length != truth.start:
                sentence = f"{truth.request_id} has {length} rows, and goes on at row {truth.start}"
                yield StepFinding(StepFault.START, truth.request_id, length, truth.start, sentence)
            lengths[truth.sequence] = (truth.sequence.handle, truth.length)
        self._lengths = lengths

    def _check_copies(self) -> Iterator[StepFinding]:
        """Whether what was to be copied is now in blocks of its sequence, in all tensors."""
        for truth in self._seen.truths:
            for copy in truth.copies:
                target = copy.target
                if target not in truth.block_table:
                    sentence = (
                        f"{truth.request_id}: block {target}, which it does not hold, is written by a copy"
                    )
                    yield StepFinding(StepFault.FOREIGN_ROWS, truth.request_id, 0, target, sentence)
                copied = self._rows_of(target, copy.num_slots)
                num_wrong = sum(
                    not _same_bytes(*pair) for pair in zip(self._seen.sources[copy], copied, strict=True)
                )
                if num_wrong:
                    sentence = (
                        f"{truth.request_id}: block {target} is to have {copy.num_slots} rows of block "
                        f"{copy.source}, and {num_wrong} of {len(copied)} tensors differ"
                    )
                    yield StepFinding(StepFault.COPY, truth.request_id, 0, num_wrong, sentence)

    def _rows_of(self, block_id: BlockId, num_rows: int) -> list[torch.Tensor]:
        """All that the pool has of a block's first rows."""
        first = block_id * self._block_size
        return [tensor[:, first : first + num_rows] for tensor in self._engine.kv_store.tensors()]

    def _check_writes(self) -> Iterator[StepFinding]:
        """Whether all layers write to the same right places, which nobody else holds."""
        if self._seen.slots_of_layer:
            by_layer = [torch.cat(parts).tolist() for parts in self._seen.slots_of_layer.values()]
        else:  # kernels write for themselves: what they were told
            by_layer = [plan.slot_mapping() for plan in self._seen.plans]
        order = self._dense_truths(None) + self._sparse_truths(None)
        distinct = list(dict.fromkeys(map(tuple, by_layer)))
        for slots in distinct:
            yield from check_writes(slots, order, self._block_size)
        tables = list(self._held_tables())
        num_holders = Counter(block_id for _, table in tables for block_id in table)
        request_of = {block_id: request_id for request_id, table in tables for block_id in table}
        yield from check_sole_holders(
            distinct[0] if distinct else (), num_holders, request_of, self._block_size
        )

    def _held_tables(self) -> Iterator[tuple[str, set[BlockId]]]:
        for answer in self._engine.answers():
            for sequence in answer.sequences:
                if sequence.handle is not None:
                    yield answer.request.request_id, set(sequence.handle.held_blocks)

    def _check_reads(self) -> Iterator[StepFinding]:
        for plan in self._seen.plans:
            yield from check_reads(plan, self._dense_truths(plan.window))
        sparse = self._sparse_truths(None)
        for truth, num_read in zip(sparse, self._seen.sparse_rows, strict=False):
            yield from compare_reads(truth.request_id, self._num_rows(truth, None), num_read)
        for truth in sparse[len(self._seen.sparse_rows) :]:
            yield from compare_reads(truth.request_id, self._num_rows(truth, None), 0)
        missing = set(distinct_windows(self._shape)) - {plan.window for plan in self._seen.plans}
        for window in missing:
            for truth in self._dense_truths(window):
                yield from compare_reads(truth.request_id, truth.num_visible_rows(window), 0)

    def _check_counts(self) -> Iterator[StepFinding]:
        """Whether what is held adds up to what the pool and the gauges say."""
        stats, gauges = self._engine.cache.stats(), self._engine.stats()
        sequences = [sequence for answer in self._engine.answers() for sequence in answer.sequences]
        handles = [sequence.handle for sequence in sequences if sequence.handle is not None]
        has_copies = any(handle.copies for handle in handles)
        held = {block_id for handle in handles for block_id in handle.held_blocks}
        if self._engine.cache.shares_prefixes:
            held |= {copy.source for handle in handles for copy in handle.copies}
        rows = [
            (
                stats.num_blocks,
                stats.num_free + stats.num_idle + stats.num_live,
                "blocks, free, idle and live",
            ),
            (stats.num_live, gauges.blocks.live, "live blocks, by the gauge"),
            (stats.num_free, gauges.blocks.free, "free blocks, by the gauge"),
            (stats.num_idle, gauges.blocks.idle, "idle blocks, by the gauge"),
            (len(handles), gauges.requests.running, "running sequences, by the gauge"),
            (len(sequences) - len(handles), gauges.requests.waiting, "waiting sequences, by the gauge"),
        ]
        if self._engine.cache.shares_prefixes or not has_copies:  # else extents are kept that nobody names
            rows.append((len(held), stats.num_live, "live blocks, by the pool"))
        for expected, found, what in rows:
            if expected != found:
                sentence = f"there are {expected} {what.replace(', by', ', and by', 1)} {found}"
                yield StepFinding(StepFault.COUNTS, "", expected, found, sentence)

    def _rows(self, window: AttentionWindow | None) -> tuple[int, int, int]:
        """Rows needed, read, and unshared, in a layer of this window."""
        dense, sparse = self._dense_truths(window), self._sparse_truths(window)
        num_sparse = sum(self._num_rows(truth, window) for truth in sparse)
        needed = num_distinct_rows(dense, window, self._block_size) + num_sparse
        read = sum(item.num_rows for plan in self._seen.plans if plan.window == window for item in plan.items)
        if sparse:
            read += sum(self._seen.sparse_rows)
        unshared = sum(truth.num_visible_rows(window) for truth in dense) + num_sparse
        return needed, read, unshared

    def _num_rows(self, truth: SequenceTruth, window: AttentionWindow | None) -> int:
        """Rows that a sequence has to read in a layer of this window."""
        if self._sparse_reads is not None and truth.is_sparse(self._sparse_reads, window, self._block_size):
            return self._sparse_reads.num_rows_read(truth.span, self._block_size)
        return truth.num_visible_rows(window)

    def _dense_truths(self, window: AttentionWindow | None) -> list[SequenceTruth]:
        return [t for t in self._seen.truths if not t.is_sparse(self._sparse_reads, window, self._block_size)]

    def _sparse_truths(self, window: AttentionWindow | None) -> list[SequenceTruth]:
        return [t for t in self._seen.truths if t.is_sparse(self._sparse_reads, window, self._block_size)]


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Also where there is NaN, which equals nothing."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
