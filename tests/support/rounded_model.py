"""A model whose keys and values are rounded to a KV format before anybody reads them."""

from __future__ import annotations

import torch
from support.delegating_model import DelegatingModel

from prefixcache_worker.attention.calibration import calibrate
from prefixcache_worker.attention.kv_format import KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.model.model import ForwardBatch, Model, StepAttention


class RoundedModel(DelegatingModel):
    """With plain attention over unrounded rows it answers what an engine over such a pool must answer."""

    def __init__(self, model: Model, kv_format: KvFormat) -> None:
        super().__init__(model)
        self._format = kv_format
        self._fixed_scales = calibrate(model, kv_format)

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        store = KvStore(
            self.attention_shape,
            num_blocks=len(batch.token_ids),
            block_size=1,
            kv_format=self._format,
            fixed_scales=self._fixed_scales,
        )
        return super().forward(batch, _RoundedAttention(attention, store))


class _RoundedAttention:
    def __init__(self, attention: StepAttention, store: KvStore) -> None:
        self._attention = attention
        self._store = store

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        slots = slice(0, len(key))
        self._store.write(layer, torch.arange(len(key)), key, value)
        rounded = self._store.keys.read(layer, slots), self._store.values.read(layer, slots)
        return self._attention.attend(layer, query, *rounded)
