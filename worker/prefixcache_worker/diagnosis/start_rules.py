"""Whether each sequence goes on where it left off, and the model is told so."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding
from prefixcache_worker.diagnosis.step_truth import SequenceTruth
from prefixcache_worker.engine.cache_scheme import SequenceHandle
from prefixcache_worker.engine.sequence import Sequence as EngineSequence
from prefixcache_worker.model.model import ForwardBatch


def check_batch(
    forward: ForwardBatch,
    truths: Sequence[SequenceTruth],  # in batch order
) -> Iterator[StepFinding]:
    """Whether the model gets each sequence's next tokens, at their positions. O(tokens)."""
    token_ids, positions = forward.token_ids.tolist(), forward.positions.tolist()
    first = 0
    for truth in truths:
        part = slice(first, first + truth.num_tokens)
        first = part.stop
        if positions[part] != list(range(truth.start, truth.length)):
            found = positions[part][0] if positions[part] else -1
            sentence = f"{truth.request_id} goes on at row {truth.start}, and the model is told {found}"
            yield StepFinding(StepFault.START, truth.request_id, truth.start, found, sentence)
        elif token_ids[part] != truth.sequence.token_ids[truth.start : truth.length]:
            sentence = (
                f"{truth.request_id}: the model gets other tokens than it has from row {truth.start} on"
            )
            yield StepFinding(StepFault.START, truth.request_id, truth.start, truth.start, sentence)


class KnownLengths:
    """How many rows each sequence had after the last step that was watched."""

    def __init__(self) -> None:
        self._known: dict[EngineSequence, tuple[SequenceHandle | None, int]] = {}

    def check(
        self, truths: Sequence[SequenceTruth], live: Collection[EngineSequence]
    ) -> Iterator[StepFinding]:
        """Whether each of a step's sequences goes on there, unless it had to give its blocks back meanwhile.

        Forgets those that are not live. O(live).
        """
        self._known = {sequence: known for sequence, known in self._known.items() if sequence in live}
        for truth in truths:
            handle, length = self._known.get(truth.sequence, (None, 0))
            if handle is truth.handle and length != truth.start:
                sentence = f"{truth.request_id} has {length} rows, and goes on at row {truth.start}"
                yield StepFinding(StepFault.START, truth.request_id, length, truth.start, sentence)
            self._known[truth.sequence] = (truth.handle, truth.length)
