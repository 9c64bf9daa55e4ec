"""Whether a step writes behind the rows of its sequences, in blocks that are theirs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from prefixcache import BlockId
from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding
from prefixcache_worker.diagnosis.step_truth import SequenceTruth
from prefixcache_worker.engine.engine import Engine


def check_borders(truths: Sequence[SequenceTruth], block_size: int) -> Iterator[StepFinding]:
    """Whether each sequence has rows, and room for them in its blocks and its context. O(sequences)."""
    for truth in truths:
        num_slots = len(truth.block_table) * block_size
        for least, most, found, what in (
            (1, len(truth.sequence.token_ids) - truth.start, truth.num_tokens, "tokens in this step"),
            (1, min(num_slots, truth.num_room_tokens), truth.length, "rows, as its blocks have room"),
            (1, truth.sequence.max_total_tokens, truth.length, "rows, as its context has"),
        ):
            if not least <= found <= most:
                yield StepFinding(
                    StepFault.BORDER,
                    truth.request_id,
                    most,
                    found,
                    f"{truth.request_id} may have {least} to {most} {what}, and has {found}",
                )


def check_writes(
    slots: Sequence[int],  # where each token's row was written, in batch order
    truths: Sequence[SequenceTruth],  # in batch order
    block_size: int,
) -> Iterator[StepFinding]:
    """What is wrong with the places of one layer's new rows. O(tokens + blocks)."""
    num_tokens = sum(truth.num_tokens for truth in truths)
    if len(slots) != num_tokens:
        sentence = f"{num_tokens} rows are new, and {len(slots)} are written"
        yield StepFinding(StepFault.START, "", num_tokens, len(slots), sentence)
        return
    for slot, count in Counter(slots).items():
        if count > 1:
            sentence = f"{count} tokens of the step write to slot {slot}"
            yield StepFinding(StepFault.OVERLAP, "", 1, count, sentence)
    first = 0
    for truth in truths:
        expected = [truth.slot(position, block_size) for position in range(truth.start, truth.length)]
        found = list(slots[first : first + truth.num_tokens])
        first += truth.num_tokens
        if found == expected:
            continue
        wrong = next(i for i in range(truth.num_tokens) if found[i] != expected[i])
        position = truth.position(found[wrong], block_size)
        if position is None:
            yield StepFinding(
                StepFault.FOREIGN_ROWS,
                truth.request_id,
                -1 if (right := expected[wrong]) is None else right,
                found[wrong],
                f"{truth.request_id} writes its row {truth.start + wrong} to slot {found[wrong]}, "
                "which is in none of its blocks",
            )
        else:
            yield StepFinding(
                StepFault.START,
                truth.request_id,
                truth.start + wrong,
                position,
                f"{truth.request_id} writes its row {truth.start + wrong} at the place of row {position}",
            )


def check_sole_holders(block_ids: Collection[BlockId], engine: Engine) -> Iterator[StepFinding]:
    """Whether blocks that were just written to are held once: by one sequence, and by no prefix that is kept.

    O(blocks that sequences hold).
    """
    holders: dict[BlockId, list[str]] = {block_id: [] for block_id in block_ids}
    for answer in engine.answers():
        for sequence in answer.sequences:
            if sequence.handle is not None:
                for block_id in holders.keys() & set(sequence.handle.held_blocks):
                    holders[block_id].append(answer.request.request_id)
    for block_id, request_ids in holders.items():
        count = len(request_ids)
        if engine.cache.shares_prefixes:  # others count by more than blocks
            count = max(count, engine.cache.num_holders(block_id))
        if count > 1:
            request_id = request_ids[0] if request_ids else ""
            sentence = f"block {block_id} is written to, and {count} hold it: {', '.join(request_ids)}"
            yield StepFinding(StepFault.OVERLAP, request_id, 1, count, sentence)
