"""Models whose layers read through windows, on the whole engine: prefill in chunks, hits, batches."""

from __future__ import annotations

import random

import pytest
import torch
from support.dense_attention import dense_greedy, dense_logits
from support.hand_engine import HandEngine, stream
from support.recording_model import RecordingModel
from support.tiny_checkpoint import VOCABULARY_SIZE, save_tiny_checkpoint, tiny_transformers_model
from support.tiny_model import tiny_decoder

from prefixcache_worker.model.loader import load_model
from prefixcache_worker.model.model import AttentionWindow, Model

WINDOW = 13
KINDS = {
    "mistral": {"sliding_window": WINDOW},
    "gemma3_text": {
        "num_hidden_layers": 4,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 24,
    },
}


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory) -> Model:
    reference = tiny_transformers_model(request.param, **KINDS[request.param])
    return load_model(str(save_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), reference))).model


def prompt(num_tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCABULARY_SIZE), k=num_tokens)


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_answers_are_those_of_plain_attention_cold_and_on_a_hit(model, backend):
    hand = HandEngine(model=model, backend=backend, max_batch_tokens=23)
    base = prompt(75, seed=0)
    prompts = [base + prompt(num_own, seed=num_own) for num_own in (1, 9, 30)]
    expected = [dense_greedy(model, token_ids, 20) for token_ids in prompts]
    assert hand.generate(prompts[0], 20) == expected[0]
    together = [hand.add(token_ids, 20) for token_ids in prompts]
    hand.run()
    # Where all layers have windows, the first answer has left the prompt behind, but for its whole blocks.
    num_kept = 75 if model.attention_shape.reach is None else 64
    assert [hand.num_cached(request_id) for request_id in together] == [num_kept] * 3
    assert [hand.tokens(request_id) for request_id in together] == expected


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize(
    ("windows", "sees_token_0"),
    [((AttentionWindow(32), None), True), ((AttentionWindow(32), AttentionWindow(32)), False)],
    ids=["one global layer", "all windowed"],
)
def test_b30_a_window_holds_for_its_own_layers_only(windows, sees_token_0, backend):
    token_ids = stream("a", 128)
    changed = [token_ids[0] + 1, *token_ids[1:]]

    def last_logits(prompt: list[int], *, warm: list[int] | None = None) -> torch.Tensor:
        model = RecordingModel(tiny_decoder(windows=windows))
        hand = HandEngine(model=model, backend=backend)
        if warm is not None:
            hand.generate(warm)
        request_id = hand.add(prompt)
        hand.run()
        assert hand.num_cached(request_id) == (0 if warm is None else 96)
        expected = dense_logits(model, prompt)[-1]
        logits = model.logits[-2][-1]  # the last call was the dense one
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        return logits

    cold = last_logits(token_ids)
    last_logits(token_ids, warm=token_ids[:96] + stream("b", 9))
    difference = float((last_logits(changed) - cold).abs().max())
    assert difference > 1e-3 if sees_token_0 else difference == 0
