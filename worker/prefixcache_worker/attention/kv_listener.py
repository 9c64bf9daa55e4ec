"""Who hears what is really done to the KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan


class KvListener(Protocol):
    """Told by whoever reads or writes the pool, in the middle of doing it. Takes nothing but its time."""

    def planned(self, plan: AttentionPlan) -> None:
        """An attention reads by this plan in the layers that have its window, and writes its new rows."""

    def sparsely_planned(self, spans: Sequence[SequenceSpan], num_top_blocks: int) -> None:
        """An attention reads so many blocks of these sequences, which are in no plan, for each head."""

    def written(
        self,
        layer: int,
        slots: torch.Tensor,  # [num_tokens] int64
    ) -> None:
        """Rows of a layer were written."""
