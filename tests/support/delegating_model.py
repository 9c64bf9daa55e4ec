"""The part that every model around another model has in common."""

from __future__ import annotations

import torch

from prefixcache_worker.model.model import AttentionShape, ForwardBatch, Model, StepAttention


class DelegatingModel:
    """Passes everything on to another model. Subclasses override `forward`."""

    def __init__(self, model: Model) -> None:
        self._model = model

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
        return self._model.forward(batch, attention)
