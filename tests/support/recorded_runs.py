"""Many prompts on one engine, with every row of logits that came of them."""

from __future__ import annotations

from typing import Any

import torch
from support.hand_engine import HandEngine
from support.recording_model import RecordingModel

from prefixcache_worker.model.linear import products_are_batch_invariant
from prefixcache_worker.model.model import Model

Logits = dict[tuple[int, int], torch.Tensor]
"""By (length of the prompt, position) [vocabulary_size]."""


def assert_same(logits: Logits, expected: Logits) -> None:
    """Bit for bit; where no kernel can be built, torch's sums depend on the batch in their last bits."""
    assert logits.keys() == expected.keys()
    tolerance = 0 if products_are_batch_invariant() else 1e-3
    for key, row in logits.items():
        torch.testing.assert_close(row, expected[key], atol=tolerance, rtol=0)


class RecordedRuns:
    """Runs all prompts on one engine, again and again."""

    def __init__(
        self, prompts: list[list[int]], num_output_tokens: int, *, model: Model, **options: Any
    ) -> None:
        """Requires prompts of different lengths, by which their rows are told apart."""
        self._prompts = prompts
        self._num_output_tokens = num_output_tokens
        self._model = RecordingModel(model)
        self.hand = HandEngine(model=self._model, backend="auto", **options)

    def run(
        self, *, num_together: int = 1, preempt_every: int = 0, use_cache: bool = True
    ) -> tuple[Logits, list[int]]:
        """All logits, and of each prompt the tokens that were cached."""
        self._model.clear()
        num_steps, ids = 0, []
        for begin in range(0, len(self._prompts), num_together):
            prompts = self._prompts[begin : begin + num_together]
            group = [
                self.hand.add(prompt, self._num_output_tokens, use_cache=use_cache) for prompt in prompts
            ]
            while self.hand.engine.has_work:
                self.hand.step()
                num_steps += 1
                if preempt_every and num_steps % preempt_every == 0:
                    for request_id in group:
                        if request_id not in self.hand.completions:
                            self.hand.engine.preempt(request_id)
            ids += group
        return self._logits(), [self.hand.num_cached(request_id) for request_id in ids]

    def _logits(self) -> Logits:
        """A row that was computed more than once has to be the same each time."""
        found: Logits = {}
        for batch, logits in zip(self._model.batches, self._model.logits, strict=True):
            lengths, positions = batch.prompt_lengths[batch.logit_rows], batch.positions[batch.logit_rows]
            for key, row in zip(zip(lengths.tolist(), positions.tolist(), strict=True), logits, strict=True):
                assert_same({key: row}, {key: found.setdefault(key, row)})
        return found
