"""With the compiled kernels the logits of an answer are the same bits, whatever else the engine did."""

from __future__ import annotations

from functools import cache

import pytest
from support.hand_engine import reference_model, stream
from support.recorded_runs import Logits, RecordedRuns, assert_same
from support.tiny_model import tiny_decoder

from prefixcache_worker.model.model import AttentionWindow

PROMPTS = [stream("a", 160) + stream(name, 3 * i + 1) for i, name in enumerate("bcdesuvz")]
"""Of different lengths, by which their rows are told apart. Enough is shared to be read once for all."""
NUM_OUTPUT_TOKENS = 6
NUM_BLOCKS = 160
MODELS = {
    "full": reference_model,
    "windows": cache(lambda: tiny_decoder(windows=(AttentionWindow(90, num_sinks=4), None))),
}


@cache
def each_alone(name: str) -> Logits:
    """Every prompt at once, by itself, with nothing cached."""
    runs = RecordedRuns(PROMPTS, NUM_OUTPUT_TOKENS, model=MODELS[name](), num_blocks=NUM_BLOCKS)
    logits, num_cached = runs.run(use_cache=False)
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
    runs = RecordedRuns(
        PROMPTS,
        NUM_OUTPUT_TOKENS,
        model=MODELS[name](),
        num_blocks=NUM_BLOCKS,
        max_batch_tokens=chunk,
        share_reads=share_reads,
    )
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
