"""A model that remembers what it was given and what it said."""

from __future__ import annotations

import torch

from prefixcache_worker.model.model import AttentionShape, ForwardBatch, Model, StepAttention


class RecordingModel:
    """Passes every call on to another model and keeps positions and logits, call by call."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.batches: list[ForwardBatch] = []
        self.logits: list[torch.Tensor] = []  # [num_logit_rows, vocabulary_size] each

    @property
    def attention_shape(self) -> AttentionShape:
        return self._model.attention_shape

    @property
    def vocabulary_size(self) -> int:
        return self._model.vocabulary_size

    @property
    def context_length(self) -> int:
        return self._model.context_length

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        self.batches.append(batch)
        self.logits.append(self._model.forward(batch, attention))
        return self.logits[-1]

    def clear(self) -> None:
        self.batches.clear()
        self.logits.clear()
