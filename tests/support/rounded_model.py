"""A model whose keys and values are rounded to a KV format before anybody reads them."""

from __future__ import annotations

from collections.abc import Collection

import torch
from support.delegating_model import DelegatingModel

from prefixcache_worker.attention.kv_format import KvFormat
from prefixcache_worker.attention.kv_store import FixedScales, KvStore
from prefixcache_worker.model.model import ForwardBatch, Model, StepAttention


class RoundedModel(DelegatingModel):
    """With plain attention over unrounded rows it answers what an engine over such a pool must answer.

    `kinds` says which rows are rounded: only keys or only values show what each of them costs.
    """

    def __init__(
        self,
        model: Model,
        kv_format: KvFormat,
        fixed_scales: FixedScales,
        *,
        kinds: Collection[str] = ("keys", "values"),
    ) -> None:
        super().__init__(model)
        self._format = kv_format
        self._fixed_scales = fixed_scales
        self._kinds = kinds

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        store = KvStore(
            self.attention_shape,
            num_blocks=len(batch.token_ids),
            block_size=1,
            kv_format=self._format,
            fixed_scales=self._fixed_scales,
        )
        return super().forward(batch, _RoundedAttention(attention, store, self._kinds))


class _RoundedAttention:
    def __init__(self, attention: StepAttention, store: KvStore, kinds: Collection[str]) -> None:
        self._attention = attention
        self._store = store
        self._kinds = kinds

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        slots = torch.arange(len(key))
        if "keys" in self._kinds:
            self._store.keys.write(layer, slots, key)
            key = self._store.keys.read(layer, slots)
        if "values" in self._kinds:
            self._store.values.write(layer, slots, value)
            value = self._store.values.read(layer, slots)
        return self._attention.attend(layer, query, key, value)
