"""With the compiled kernels the logits of an answer are the same bits, whatever else the engine did."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from support.hand_engine import HandEngine, reference_model, stream
from support.recording_model import RecordingModel
from support.tiny_model import tiny_decoder

from prefixcache_worker.model.linear import products_are_batch_invariant
from prefixcache_worker.model.model import AttentionWindow, Model

PROMPTS = [stream("a", 160) + stream(name, 3 * i + 1) for i, name in enumerate("bcdesuvz")]
"""Of different lengths, by which their rows are told apart. Enough is shared to be read once for all."""
NUM_OUTPUT_TOKENS = 6
MODELS = {
    "full": reference_model,
    "windows": cache(lambda: tiny_decoder(windows=(AttentionWindow(90, num_sinks=4), None))),
}

Logits = dict[tuple[int, int], torch.Tensor]
"""By (length of the prompt, position) [vocabulary_size]."""


def assert_same(logits: Logits, expected: Logits) -> None:
    """Bit for bit; where no kernel can be built, torch's sums depend on the batch in their last bits."""
    assert logits.keys() == expected.keys()
    tolerance = 0 if products_are_batch_invariant() else 1e-3
    for key, row in logits.items():
        torch.testing.assert_close(row, expected[key], atol=tolerance, rtol=0)


class Runs:
    """Runs all prompts on one engine, again and again."""

    def __init__(self, model: Model, **limits: int) -> None:
        self._model = RecordingModel(model)
        self.hand = HandEngine(model=self._model, backend="auto", num_blocks=160, **limits)

    def run(
        self, *, num_together: int = 1, preempt_every: int = 0, use_cache: bool = True
    ) -> tuple[Logits, list[int]]:
        """All logits, and of each prompt the tokens that were cached."""
        self._model.clear()
        num_steps, ids = 0, []
        for begin in range(0, len(PROMPTS), num_together):
            prompts = PROMPTS[begin : begin + num_together]
            group = [self.hand.add(prompt, NUM_OUTPUT_TOKENS, use_cache=use_cache) for prompt in prompts]
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


@cache
def each_alone(name: str) -> Logits:
    """Every prompt at once, by itself, with nothing cached."""
    logits, num_cached = Runs(MODELS[name]()).run(use_cache=False)
    assert num_cached == [0] * len(PROMPTS)
    assert len(logits) == NUM_OUTPUT_TOKENS * len(PROMPTS)
    return logits


@pytest.mark.parametrize("share_reads", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("preempt_every", [0, 17], ids=["", "preempted"])
@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("num_together", [1, 8])
@pytest.mark.parametrize("name", MODELS)
def test_b115_cache_batch_chunks_and_preemption_change_no_bit(
    name: str, num_together: int, chunk: int, preempt_every: int, share_reads: bool
):
    expected = each_alone(name)
    runs = Runs(MODELS[name](), max_batch_tokens=chunk, share_reads=share_reads)
    how = {"num_together": num_together, "preempt_every": preempt_every}
    cold, num_cached = runs.run(**how, use_cache=False)
    assert num_cached == [0] * len(PROMPTS)
    assert_same(cold, expected)
    first, num_cached = runs.run(**how)
    assert num_cached == [0] + [160] * (len(PROMPTS) - 1)
    assert_same(first, expected)
    warm, num_cached = runs.run(**how)
    assert num_cached == [len(prompt) - 1 for prompt in PROMPTS]
    assert_same(warm, expected)
    stats = runs.hand.engine.stats()
    assert (stats.requests.preemptions > 0) == (preempt_every > 0)
    is_read_once = stats.tokens.kv_rows_read < stats.tokens.kv_rows_unshared
    assert is_read_once == (share_reads and num_together > 1)
