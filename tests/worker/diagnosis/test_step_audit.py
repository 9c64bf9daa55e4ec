"""For each rule of the audit an engine that breaks just this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.audited_engine import AuditedEngine
from support.hand_engine import HandEngine, stream
from support.tiny_model import tiny_decoder

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.approximation import Approximation
from prefixcache_worker.attention.kv_format import choose_format
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan, WorkItem
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding
from prefixcache_worker.engine.counters import Counters
from prefixcache_worker.engine.sequence import Sequence as EngineSequence
from prefixcache_worker.engine.stats import EngineStats
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.model.scripted_model import ScriptedModel


def scripted(**options: Any) -> AuditedEngine:
    """One layer, and a model that does not look at what it reads, so that no fault has consequences."""
    model = ScriptedModel(range(10, 90), vocabulary_size=1000, eos_token_id=2)
    return AuditedEngine(HandEngine(model=model, block_size=8, poison=0.0, **options))


def two_decoding(**options: Any) -> AuditedEngine:
    """Two requests that share nothing, with 20 and 11 rows, and decode from here on. No records yet."""
    audited = scripted(**options)
    audited.hand.add(stream("a", 19), 30, request_id="a")
    audited.hand.add(stream("b", 10), 30, request_id="b")
    for _ in range(2):
        audited.hand.step()
    assert audited.findings == []
    audited.records.clear()
    return audited


def sequence_of(audited: AuditedEngine, request_id: str) -> EngineSequence:
    running = audited.hand.engine._scheduler.running
    return next(sequence for sequence in running if sequence.request.request_id == request_id)


def step(audited: AuditedEngine) -> Sequence[StepFinding]:
    """One step, whatever it has broken, and what is said of it."""
    audited.hand.engine.step()
    return audited.records[-1].findings


def change_plans(audited: AuditedEngine, change: Callable[[AttentionPlan], AttentionPlan]) -> None:
    planner = audited.hand.engine._planner
    plan = planner.plan
    planner.plan = lambda spans: tuple(map(change, plan(spans)))  # type: ignore[method-assign]


def change_item(plan: AttentionPlan, token: int, change: Callable[[WorkItem], WorkItem]) -> AttentionPlan:
    """The plan with another last item of a token."""
    items = list(plan.items)
    index = max(i for i, item in enumerate(items) if item.first_token == token)
    items[index] = change(items[index])
    return plan._replace(items=tuple(items))


def test_what_a_step_had_to_do_is_told() -> None:
    audited = two_decoding()
    assert step(audited) == ()
    (record,) = audited.records
    assert (record.num_sequences, record.num_tokens, record.num_prompt_tokens) == (2, 2, 0)
    assert (record.rows_needed, record.rows_read, record.rows_unshared) == (33, 33, 33)
    assert (record.longest, record.live_blocks, record.num_block_copies) == (21, 5, 0)


def test_a_step_takes_as_long_as_the_clock_says() -> None:
    readings = iter([0.0, 10.0, 13.0, 20.0, 25.0])
    audited = scripted()
    audited.audit.stop()
    audit = type(audited.audit)(audited.hand.engine, audited.records.append, clock=lambda: next(readings))
    audit.start()
    audited.hand.add(stream("a", 5), 1)
    audited.hand.step()
    (record,) = audited.records
    assert (record.seconds, record.plan_seconds, record.model_seconds) == (15.0, 3.0, 7.0)


def test_rows_that_are_shared_are_needed_once_in_whatever_blocks() -> None:
    """200 common rows, and a block that is copied because it is shared in part."""
    audited = scripted()
    common = stream("a", 200)
    audited.hand.generate([*common, 5])
    for own in (6, 7, 8):
        audited.hand.add([*common, own, own], 2)
    audited.hand.step()
    record = audited.records[-1]
    assert (record.num_tokens, record.rows_needed, record.rows_unshared) == (6, 206, 606)
    assert record.rows_read == 192 + 3 * (8 + 2)  # what is shared ends where a chunk does
    assert audited.findings == []


def test_one_row_too_many_is_found() -> None:
    audited = two_decoding()
    change_plans(
        audited, lambda plan: change_item(plan, 0, lambda item: item._replace(num_rows=item.num_rows + 1))
    )
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id) == (StepFault.ROWS_READ_MORE, "a")
    assert (finding.expected, finding.found) == (21, 22)
    assert finding.sentence == "a has 21 rows to read, and 22 are read"


def test_a_run_that_is_read_twice_is_found() -> None:
    audited = two_decoding()
    change_plans(audited, lambda plan: plan._replace(items=(*plan.items, plan.items[0]._replace(level=5))))
    (finding,) = step(audited)
    assert (finding.fault, finding.expected, finding.found) == (StepFault.ROWS_READ_MORE, 21, 42)


def test_rows_that_are_left_out_are_found() -> None:
    audited = two_decoding()
    change_plans(
        audited, lambda plan: change_item(plan, 1, lambda item: item._replace(num_rows=item.num_rows - 2))
    )
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id) == (StepFault.ROWS_READ_LESS, "b")
    assert (finding.expected, finding.found) == (12, 10)


def test_a_sequence_that_is_not_read_at_all_is_found() -> None:
    audited = two_decoding()
    change_plans(audited, lambda plan: plan._replace(items=plan.items[:1]))
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id, finding.found) == (StepFault.ROWS_READ_LESS, "b", 0)


def test_rows_of_another_sequence_are_found() -> None:
    audited = two_decoding()
    foreign = sequence_of(audited, "b").running_handle.block_table[0]

    def swap(item: WorkItem) -> WorkItem:
        return item._replace(block_ids=(item.block_ids[0], foreign, *item.block_ids[2:]))

    change_plans(audited, lambda plan: change_item(plan, 0, swap))
    (finding,) = step(audited)
    own = sequence_of(audited, "a").running_handle.block_table[1]
    assert (finding.fault, finding.request_id) == (StepFault.FOREIGN_ROWS, "a")
    assert (finding.expected, finding.found) == (8 * own, 8 * foreign)


def test_a_plan_of_wrong_tables_is_found() -> None:
    """What the plan claims of itself is all in order: it is made of a table that is not the sequence's."""
    audited = two_decoding()
    planner = audited.hand.engine._planner
    plan = planner.plan

    def plan_wrongly(spans: Sequence[SequenceSpan]) -> tuple[AttentionPlan, ...]:
        tables = [list(span.block_table) for span in spans]
        tables[0][0] = tables[1][0]
        return plan([span._replace(block_table=table) for span, table in zip(spans, tables, strict=True)])

    planner.plan = plan_wrongly  # type: ignore[method-assign]
    audited.hand.engine.step()
    assert {finding.fault for finding in audited.findings} == {StepFault.FOREIGN_ROWS}


def shift_writes(audited: AuditedEngine, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    store = audited.hand.store
    write = store.write
    store.write = lambda layer, slots, key, value: write(layer, change(slots), key, value)  # type: ignore[method-assign]


def test_a_row_that_is_written_at_another_place_is_found() -> None:
    audited = two_decoding()
    shift_writes(audited, lambda slots: slots + torch.tensor([1, 0]))
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id) == (StepFault.START, "a")
    assert (finding.expected, finding.found) == (20, 21)


def test_a_row_that_is_written_to_another_s_block_is_found() -> None:
    audited = two_decoding()
    foreign = 8 * sequence_of(audited, "b").running_handle.block_table[0]
    shift_writes(audited, lambda slots: torch.stack([torch.tensor(foreign), slots[1]]))
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id, finding.found) == (StepFault.FOREIGN_ROWS, "a", foreign)


def test_two_rows_in_one_slot_are_found() -> None:
    audited = two_decoding()
    shift_writes(audited, lambda slots: slots[[1, 1]])
    assert {finding.fault for finding in step(audited)} == {StepFault.OVERLAP, StepFault.FOREIGN_ROWS}


def test_a_write_into_what_others_hold_is_found() -> None:
    audited = two_decoding()
    chosen = audited.audit.chosen

    def choose(spans: Any) -> None:
        """Too late for the copy that the cache would have ordered."""
        audited.hand.cache._pool.retain(sequence_of(audited, "a").running_handle.block_table[-1:])
        chosen(spans)

    audited.audit.chosen = choose  # type: ignore[method-assign]
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id) == (StepFault.OVERLAP, "a")
    assert (finding.expected, finding.found) == (1, 2)


def test_a_sequence_that_goes_on_at_another_row_is_found() -> None:
    """An offset that is not what the step before has left: every index is consistent with it."""
    audited = scripted(max_batch_tokens=10)
    audited.hand.add(stream("a", 40), 1, request_id="a")
    step(audited)
    sequence_of(audited, "a").num_computed_tokens -= 1
    (finding,) = step(audited)
    assert (finding.fault, finding.expected, finding.found) == (StepFault.START, 10, 9)
    assert finding.sentence == "a has 10 rows, and goes on at row 9"


def test_other_positions_than_the_sequences_are_found() -> None:
    audited = two_decoding()
    prepared = audited.audit.prepared

    def prepare(batch: Any) -> None:
        batch.forward.positions[0] += 3
        prepared(batch)

    audited.audit.prepared = prepare  # type: ignore[method-assign]
    assert [(f.fault, f.request_id, f.expected, f.found) for f in step(audited)] == [
        (StepFault.START, "a", 20, 23)
    ]


def test_other_tokens_than_the_sequence_s_are_found() -> None:
    audited = two_decoding()
    prepared = audited.audit.prepared

    def prepare(batch: Any) -> None:
        batch.forward.token_ids[1] += 1
        prepared(batch)

    audited.audit.prepared = prepare  # type: ignore[method-assign]
    assert [(f.fault, f.request_id) for f in step(audited)] == [(StepFault.START, "b")]


def test_a_sequence_beyond_its_context_is_found() -> None:
    audited = two_decoding()
    sequence_of(audited, "a").max_total_tokens = 20
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id) == (StepFault.BORDER, "a")
    assert (finding.expected, finding.found) == (20, 21)


def test_blocks_that_are_given_back_late_are_found_in_the_step_that_ends_the_request() -> None:
    audited = scripted()
    cache = audited.hand.cache
    late: list[Any] = []
    release, cache.release = cache.release, late.append
    audited.hand.add(stream("a", 19), 2)
    assert step(audited) == ()
    (finding,) = step(audited)
    assert (finding.fault, finding.request_id) == (StepFault.COUNTS, "")
    assert finding.sentence == "requests hold 0 blocks, and 3 of the pool are live"
    assert audited.records[-1].live_blocks == 3
    release(*late)
    cache.release = release
    audited.hand.add(stream("b", 5), 1)
    assert step(audited) == ()


def test_a_reference_that_nobody_drops_is_found() -> None:
    audited = scripted()
    request_id = audited.hand.add(stream("a", 19), 2)
    step(audited)
    audited.hand.cache._pool.retain(audited.hand.handle(request_id).block_table[:1])
    assert [(f.fault, f.expected, f.found) for f in step(audited)] == [(StepFault.COUNTS, 0, 1)]


def test_a_gauge_that_drifts_is_found() -> None:
    class DriftingCounters(Counters):
        def stats(self, *arguments: Any, **options: Any) -> EngineStats:
            right = super().stats(*arguments, **options)
            return replace(right, requests=replace(right.requests, running=right.requests.running + 1))

    audited = two_decoding()
    audited.hand.engine._counters = DriftingCounters()
    (finding,) = step(audited)
    assert finding.fault is StepFault.COUNTS
    assert finding.sentence == "2 sequences run, and the gauge says 3"


def test_scales_that_are_left_behind_by_a_copy_are_found() -> None:
    model = tiny_decoder()
    hand = HandEngine(model=model, kv_format=choose_format("int8", None, model.attention_shape))
    audited = AuditedEngine(hand)
    hand.generate(stream("a", 24))
    rows = hand.store.keys.rows, hand.store.values.rows

    def copy_rows(copies: Iterable[BlockCopy]) -> None:
        for source, target, num_slots in copies:
            for tensor in rows:
                tensor[:, target * 16 : target * 16 + num_slots] = tensor[
                    :, source * 16 : source * 16 + num_slots
                ]

    hand.store.copy_blocks = copy_rows  # type: ignore[method-assign]
    hand.add([*stream("a", 20), 5], 1)
    (finding,) = step(audited)
    assert (finding.fault, finding.expected, finding.found) == (StepFault.COPY, 0, 2)


def test_a_copy_into_a_block_of_others_is_found() -> None:
    audited = scripted()
    audited.hand.generate(stream("a", 24))
    audited.hand.add([*stream("a", 20), 5], 1)
    chosen = audited.audit.chosen

    def choose(spans: Any) -> None:
        (copy,) = spans[0].sequence.running_handle.copies
        spans[0].sequence.running_handle.copies[:] = [copy._replace(target=BlockId(60))]
        chosen(spans)

    audited.audit.chosen = choose  # type: ignore[method-assign]
    (finding,) = step(audited)
    assert (finding.fault, finding.found) == (StepFault.FOREIGN_ROWS, 60)


WINDOW = AttentionWindow(8, 4)


@pytest.mark.parametrize(
    ("num_more", "fault"), [(1, StepFault.ROWS_READ_MORE), (-1, StepFault.ROWS_READ_LESS)]
)
def test_windows_have_a_right_number_of_their_own(num_more: int, fault: StepFault) -> None:
    audited = scripted(approximation=Approximation(window=WINDOW))
    audited.hand.add(stream("a", 30), 5)
    for _ in range(2):
        audited.hand.step()
    assert audited.findings == []
    assert audited.records[-1].rows_needed == 12

    def shift(item: WorkItem) -> WorkItem:
        first = item.first_position - num_more
        return item._replace(
            num_rows=item.num_rows + num_more, first_position=first, first_row=item.first_row - num_more
        )

    change_plans(audited, lambda plan: change_item(plan, 0, shift))
    (finding,) = step(audited)
    assert (finding.fault, finding.expected, finding.found) == (fault, 12, 12 + num_more)


def test_sparse_reads_have_a_right_number_of_their_own() -> None:
    """Four blocks are to be read, and the engine reads five."""
    audited = AuditedEngine(
        HandEngine(block_size=8, approximation=Approximation(sparse_reads=SparseReads(4)))
    )
    audited.hand.add(stream("a", 60), 9)
    for _ in range(2):
        audited.hand.step()
    assert audited.findings == []
    assert (audited.records[-1].rows_needed, audited.records[-1].rows_read) == (29, 29)
    audited.hand.engine._attention._reads = SparseReads(5)
    (finding,) = step(audited)
    assert (finding.fault, finding.expected, finding.found) == (StepFault.ROWS_READ_MORE, 30, 38)
    assert audited.records[-1].rows_read == 38


def test_of_many_findings_twenty_are_told() -> None:
    audited = scripted()
    for number in range(30):
        audited.hand.add([100 + number, 5], 5, request_id=str(number))
    step(audited)
    change_plans(audited, lambda plan: plan._replace(items=()))
    audited.hand.engine._attention = lambda plan, store: NoAttention(store, plan)
    assert len(step(audited)) == 20


class NoAttention:
    """Writes, says so, and reads nothing."""

    def __init__(self, store: Any, plan: AttentionPlan) -> None:
        store.listener.planned(plan)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return query


def test_a_step_whose_model_fails_is_told_too() -> None:
    audited = two_decoding()
    engine = audited.hand.engine

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("broken")

    engine._model.forward = fail  # type: ignore[method-assign]
    assert step(audited) == ()
    assert audited.records[-1].rows_read == 33  # as it was told


def test_nothing_is_heard_when_the_watch_has_ended() -> None:
    audited = two_decoding()
    audited.audit.stop()
    audited.hand.step()
    assert audited.records == []
    assert audited.hand.store.listener is None


def test_an_audit_that_breaks_harms_no_step() -> None:
    audited = two_decoding()
    failures: list[str] = []
    audited.audit._fail = lambda: failures.append("broken")
    audited.audit.computed = lambda: 1 / 0  # type: ignore[method-assign]
    audited.hand.run()
    assert failures == ["broken"]
    assert audited.hand.completions.keys() == {"a", "b"}
    assert audited.hand.store.listener is None
