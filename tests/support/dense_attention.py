"""The plainest `StepAttention`: every sequence keeps its own rows, no pool and no sharing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prefixcache_worker.model.model import AttentionShape, ForwardBatch, Model


class DenseCache:
    """Keys and values of one sequence, layer by layer, each [num_tokens, num_kv_heads, head_dim]."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        empty = torch.empty(0, shape.num_kv_heads, shape.head_dim)
        self.keys = [empty] * shape.num_layers
        self.values = [empty] * shape.num_layers

    @property
    def num_tokens(self) -> int:
        return len(self.keys[-1])


class DenseAttention:
    """Attention of one step: `num_new_tokens[i]` rows of the batch belong to `caches[i]`, in this order."""

    def __init__(self, caches: Sequence[DenseCache], num_new_tokens: Sequence[int]) -> None:
        self._caches = caches
        self._num_new_tokens = list(num_new_tokens)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        per_sequence = zip(
            self._caches,
            query.split(self._num_new_tokens),
            key.split(self._num_new_tokens),
            value.split(self._num_new_tokens),
            strict=True,
        )
        return torch.cat([_attend_one(layer, *sequence) for sequence in per_sequence])


def _attend_one(
    layer: int, cache: DenseCache, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    keys = cache.keys[layer] = torch.cat((cache.keys[layer], key))
    values = cache.values[layer] = torch.cat((cache.values[layer], value))
    num_new, num_tokens = len(query), len(keys)
    group_size = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(group_size, dim=1))
    rows, positions = torch.arange(num_tokens), torch.arange(num_tokens - num_new, num_tokens)[:, None]
    unseen = rows > positions  # [num_new, num_tokens]
    if window := cache.shape.window(layer):
        unseen |= (rows <= positions - window.size) & (rows >= window.num_sinks)
    weights = (scores * cache.shape.scale).masked_fill(unseen, float("-inf")).softmax(dim=2)
    return torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group_size, dim=1))


def dense_forward(
    model: Model,
    caches: Sequence[DenseCache],
    token_ids: Sequence[Sequence[int]],
    prompt_lengths: Sequence[int],
) -> torch.Tensor:  # [sum(num_new_tokens), vocabulary_size]
    """Run `token_ids[i]` behind the rows of `caches[i]`; logits of every new token."""
    positions = [
        position
        for cache, new_ids in zip(caches, token_ids, strict=True)
        for position in range(cache.num_tokens, cache.num_tokens + len(new_ids))
    ]
    lengths = [n for n, new_ids in zip(prompt_lengths, token_ids, strict=True) for _ in new_ids]
    batch = ForwardBatch(
        token_ids=torch.tensor([token_id for new_ids in token_ids for token_id in new_ids]),
        positions=torch.tensor(positions),
        prompt_lengths=torch.tensor(lengths),
        logit_rows=torch.arange(len(positions)),
    )
    return model.forward(batch, DenseAttention(caches, [len(new_ids) for new_ids in token_ids]))


def dense_logits(model: Model, token_ids: Sequence[int]) -> torch.Tensor:  # [len(token_ids), vocabulary_size]
    """Logits of every token of one prompt, computed at once."""
    return dense_forward(model, [DenseCache(model.attention_shape)], [token_ids], [len(token_ids)])


def dense_greedy(
    model: Model, prompt: Sequence[int], max_tokens: int, *, eos_token_ids: Sequence[int] = ()
) -> list[int]:
    """Greedy output of one prompt alone; an end-of-text token ends it and is part of it."""
    cache = DenseCache(model.attention_shape)
    output: list[int] = []
    new_ids: Sequence[int] = prompt
    while len(output) < max_tokens:
        logits = dense_forward(model, [cache], [new_ids], [len(prompt)])
        output.append(int(logits[-1].argmax()))
        if output[-1] in eos_token_ids:
            break
        new_ids = output[-1:]
    return output
