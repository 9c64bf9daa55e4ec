"""A model that repeats its prompt by reading it from the KV pool: a wrong block shows as a wrong token."""

from __future__ import annotations

import torch

from prefixcache_worker.model.model import AttentionShape, ForwardBatch, StepAttention

_HEAD_DIM = 64
_SHARPNESS = 8.0
"""Scales the queries so that attention to any but the wanted position is below 1e-6 in all."""
_LOGIT_SCALE = 20.0
"""One wrong bit lowers a token's logit by twice this, so that sampling cannot stray either."""
# fmt: off
_PRIMES = (
    2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53,
    59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131,
)
# fmt: on


class EchoModel:
    """Output k of a sequence is its prompt's token k, then the end-of-text token for ever.

    One layer, one head. A key encodes its position, a value the bits of its token as +1 and -1; the query
    of output k asks for position k. The token that comes out is the one whose bits came back from the pool.
    """

    attention_shape = AttentionShape(num_layers=1, num_query_heads=1, num_kv_heads=1, head_dim=_HEAD_DIM)

    def __init__(self, *, vocabulary_size: int, eos_token_id: int, context_length: int = 4096) -> None:
        assert 0 <= eos_token_id < vocabulary_size
        assert context_length <= 4096, "two positions further apart may look alike"
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self._eos_token_id = eos_token_id
        self._position_codes = _position_codes(context_length)
        self._token_bits = _token_bits(vocabulary_size)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        """See `Model.forward`. At a prompt token before the last, the logits echo token 0."""
        output_index = batch.positions - batch.prompt_lengths + 1
        query = _SHARPNESS * self._position_codes[output_index.clamp(min=0)]
        key = self._position_codes[batch.positions]
        value = self._token_bits[batch.token_ids]
        attended = attention.attend(0, query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)).squeeze(1)
        logits = _LOGIT_SCALE * attended[batch.logit_rows] @ self._token_bits.T
        has_ended = (output_index >= batch.prompt_lengths)[batch.logit_rows]
        logits[has_ended] = 0.0
        logits[has_ended, self._eos_token_id] = _LOGIT_SCALE * 2
        return logits


def _position_codes(num_positions: int) -> torch.Tensor:  # [num_positions, _HEAD_DIM]
    """Cosine and sine of each position at 32 unrelated frequencies.

    The product of two codes is the sum of cos(frequency * distance): 32 at distance 0, and below 19 at
    every other distance up to 4,096, because square roots of primes never fall into step.
    """
    frequencies = 2 * torch.pi * torch.tensor(_PRIMES, dtype=torch.float64).sqrt()
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


def _token_bits(vocabulary_size: int) -> torch.Tensor:  # [vocabulary_size, _HEAD_DIM]
    """Bits of each id as +1 and -1; elements that no id needs are 0."""
    num_bits = max(1, (vocabulary_size - 1).bit_length())
    ids = torch.arange(vocabulary_size).unsqueeze(1)
    bits = (ids >> torch.arange(num_bits)) & 1
    return torch.nn.functional.pad(2.0 * bits - 1.0, (0, _HEAD_DIM - num_bits))
