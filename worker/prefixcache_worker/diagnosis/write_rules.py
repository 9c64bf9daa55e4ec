"""Whether a step writes behind the rows of its sequences, in blocks that are theirs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prefixcache import BlockId
from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding
from prefixcache_worker.diagnosis.step_truth import SequenceTruth


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


def check_sole_holders(
    slots: Sequence[int],
    num_holders: Mapping[BlockId, int],
    request_of: Mapping[BlockId, str],
    block_size: int,
) -> Iterator[StepFinding]:
    """Whether those who write to a block hold it alone. `num_holders`: sequences that have it. O(slots)."""
    for block_id in dict.fromkeys(BlockId(slot // block_size) for slot in slots):
        count = num_holders.get(block_id, 1)
        if count > 1:
            request_id = request_of.get(block_id, "")
            sentence = f"{request_id} writes to block {block_id}, which {count} hold"
            yield StepFinding(StepFault.OVERLAP, request_id, 1, count, sentence)
