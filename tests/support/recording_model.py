"""A model that remembers what it was given and what it said."""

from __future__ import annotations

import torch
from support.delegating_model import DelegatingModel

from prefixcache_worker.model.model import ForwardBatch, Model, StepAttention


class RecordingModel(DelegatingModel):
    """Keeps the batches and logits of another model, call by call."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.batches: list[ForwardBatch] = []
        self.logits: list[torch.Tensor] = []  # [num_logit_rows, vocabulary_size] each

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        self.batches.append(batch)
        self.logits.append(super().forward(batch, attention))
        return self.logits[-1]

    def clear(self) -> None:
        self.batches.clear()
        self.logits.clear()
