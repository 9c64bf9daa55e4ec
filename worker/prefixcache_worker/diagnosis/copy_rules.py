"""Whether blocks that are copied on write come out as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from prefixcache import BlockId
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding
from prefixcache_worker.diagnosis.step_truth import SequenceTruth


class OrderedCopies:
    """What a step has to copy, as it is before: once copied, it may be overwritten."""

    def __init__(self, store: KvStore, truths: Sequence[SequenceTruth]) -> None:
        """Requires: nothing of it is copied yet. Copies it too."""
        self._store = store
        self._truths = truths
        self._sources = {
            copy: [rows.clone() for rows in self._rows(copy.source, copy.num_slots)]
            for truth in truths
            for copy in truth.copies
        }

    def __len__(self) -> int:
        return len(self._sources)

    def check(self) -> Iterator[StepFinding]:
        """Whether it is in its sequences' blocks now, in all tensors. O(what was copied)."""
        for truth in self._truths:
            for copy in truth.copies:
                if copy.target not in truth.block_table:
                    sentence = (
                        f"{truth.request_id}: a copy goes to block {copy.target}, which it does not hold"
                    )
                    yield StepFinding(StepFault.FOREIGN_ROWS, truth.request_id, 0, copy.target, sentence)
                copied = self._rows(copy.target, copy.num_slots)
                num_wrong = sum(
                    not _same_bytes(*pair) for pair in zip(self._sources[copy], copied, strict=True)
                )
                if num_wrong:
                    sentence = (
                        f"{truth.request_id}: block {copy.target} is to have {copy.num_slots} rows of block "
                        f"{copy.source}, and {num_wrong} of {len(copied)} tensors differ"
                    )
                    yield StepFinding(StepFault.COPY, truth.request_id, 0, num_wrong, sentence)

    def _rows(self, block_id: BlockId, num_rows: int) -> list[torch.Tensor]:
        """All that the pool has of a block's first rows."""
        first = block_id * self._store.block_size
        return [tensor[:, first : first + num_rows] for tensor in self._store.tensors()]


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Also where there is NaN, which equals nothing."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
