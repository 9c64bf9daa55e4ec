"""A model that says what a script says: for tests of everything around the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prefixcache_worker.model.model import AttentionShape, ForwardBatch, StepAttention

_CERTAIN = 40.0
"""A logit that leaves the other tokens no chance at any usual temperature."""


class ScriptedModel:
    """Output k of every sequence is `script[k]`, then the end-of-text token for ever.

    It keeps one layer of zero rows in the pool and does not look at what it reads back.
    """

    attention_shape = AttentionShape(num_layers=1, num_query_heads=1, num_kv_heads=1, head_dim=8)

    def __init__(
        self,
        script: Sequence[int],
        *,
        vocabulary_size: int,
        eos_token_id: int,
        context_length: int = 4096,
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self._outputs = torch.tensor([*script, eos_token_id])
        assert 0 <= int(self._outputs.min()) <= int(self._outputs.max()) < vocabulary_size

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        """See `Model.forward`. Logits at a prompt token before the last are arbitrary."""
        rows = torch.zeros(len(batch.token_ids), 1, self.attention_shape.head_dim)
        attention.attend(0, rows, rows, rows)
        output_index = (batch.positions - batch.prompt_lengths + 1)[batch.logit_rows]
        next_ids = self._outputs[output_index.clamp(0, len(self._outputs) - 1)]
        logits = torch.zeros(len(next_ids), self.vocabulary_size)
        return logits.scatter_(1, next_ids.unsqueeze(1), _CERTAIN)
