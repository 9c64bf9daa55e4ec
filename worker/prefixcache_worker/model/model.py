"""The seam between the engine and whatever computes logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch


class AttentionWindow(NamedTuple):
    """Which rows a query reads of those before it: the last `size`, its own included, and the sinks.

    The query at position p reads row r if r <= p and (r > p - size or r < num_sinks).
    """

    size: int
    num_sinks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What the KV pool and the attention backends need to know of a model."""

    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[AttentionWindow | None, ...] = ()
    """One for each layer; None, and where this is empty, reads everything."""
    score_scale: float | None = None
    """What scores are multiplied by; None: head_dim ** -0.5."""

    def window(self, layer: int) -> AttentionWindow | None:
        """What the queries of a layer read."""
        return self.windows[layer] if self.windows else None

    @property
    def reach(self) -> AttentionWindow | None:
        """What any of the layers reads; None if one reads everything."""
        windows = [window for window in self.windows if window is not None]
        if len(windows) < self.num_layers:
            return None
        return AttentionWindow(max(w.size for w in windows), max(w.num_sinks for w in windows))

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5 if self.score_scale is None else self.score_scale

    @property
    def group_size(self) -> int:
        """Query heads that read one KV head."""
        return self.num_query_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of one step, all sequences one after the other, without padding.

    Sequence by sequence; the tokens of one sequence stand at consecutive positions.
    """

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64, absolute in their sequences
    prompt_lengths: torch.Tensor  # [num_tokens] int64, prompt tokens of the token's sequence
    logit_rows: torch.Tensor  # [num_logit_rows] int64, tokens whose logits are wanted


class StepAttention(Protocol):
    """Attention of one step over the KV pool. Made by the engine, called once per layer by the model."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim], rotated, not scaled
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim], rotated
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """Write key and value rows to the pool, then let each query read its sequence up to itself.

        Query head h reads KV head h // group_size. Scores are scaled by `AttentionShape.scale`; which rows
        a query reads is `AttentionShape.window` of the layer.
        """
        ...


class Model(Protocol):
    """Anything that turns tokens into logits through paged attention."""

    @property
    def attention_shape(self) -> AttentionShape: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        """Logits of `batch.logit_rows`: [num_logit_rows, vocabulary_size], float32.

        Calls `attention.attend` once per layer, layers in order.
        """
        ...
