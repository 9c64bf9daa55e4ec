"""Engines over pools of several formats, with every free slot poisoned."""

import hashlib
import itertools
from functools import cache

import pytest
import torch
from support.dense_attention import dense_greedy
from support.hand_engine import HandEngine, reference_model, stream
from support.recording_model import RecordingModel
from support.rounded_model import RoundedModel
from support.tiny_model import tiny_decoder

from prefixcache_worker.attention.calibration import calibrate
from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import NO_FIXED_SCALES
from prefixcache_worker.model.linear import products_are_batch_invariant
from prefixcache_worker.model.model import AttentionWindow

FP16 = KvFormat(KvDtype.FP16)
INT8 = KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD)
INT4 = KvFormat(KvDtype.INT4, KvScales.TOKEN_HEAD)
SOME_FORMATS = [
    FP16,
    INT8,
    INT4,
    KvFormat(KvDtype.INT8, KvScales.TENSOR),
    KvFormat(KvDtype.INT4, KvScales.CHANNEL),
]
by_format = pytest.mark.parametrize("kv_format", SOME_FORMATS, ids=lambda kv_format: kv_format.name)


@cache
def rounded_model(kv_format):
    return RoundedModel(reference_model(), kv_format, calibrate(reference_model(), kv_format))


def expected(prompt, num_tokens, kv_format):
    """The greedy answer with plain attention over rows rounded to the format."""
    return dense_greedy(rounded_model(kv_format), prompt, num_tokens)


@by_format
def test_b13_unwritten_rows_never_reach_an_answer(kv_format):
    prompts = [stream(name, n) for name, n in zip("abcdes", [1, 15, 16, 17, 31, 33], strict=True)]
    answers = [expected(prompt, 20, kv_format) for prompt in prompts]
    for poison, backend in itertools.product((torch.nan, torch.inf), ("torch", "auto")):
        model = RecordingModel(reference_model())
        hand = HandEngine(model=model, poison=poison, kv_format=kv_format, backend=backend)
        ids = [hand.add(prompt, 20) for prompt in prompts]
        hand.run()
        assert all(logits.isfinite().all() for logits in model.logits)
        assert [hand.tokens(request_id) for request_id in ids] == answers


@by_format
def test_copy_on_write_moves_scales_with_the_rows(kv_format):
    """A tail of 8 rows in a block of 16 is copied for three writers; the tree's own bytes stay."""
    hand = HandEngine(kv_format=kv_format, backend="auto")
    hand.generate(stream("a", 40))
    node = next(node for node in hand.cache.dump() if len(node.block_ids) == 2)
    before = hand.store.read_blocks(node.block_ids[:2])
    prompts = [stream("a", 40) + stream(name, 4) for name in "bc"] + [stream("a", 40)]
    ids = [hand.add(prompt, 8) for prompt in prompts]
    hand.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert hand.num_cached(request_id) == min(40, len(prompt) - 1)
        assert hand.tokens(request_id) == expected(prompt, 8, kv_format)
    assert hand.engine.stats().blocks.copied >= 3
    assert hand.store.read_blocks(node.block_ids[:2]) == before


@pytest.mark.parametrize("kv_format", [INT8, INT4], ids=["int8", "int4"])
def test_b28_the_same_query_again_gets_the_same_answer(kv_format):
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, kv_format=kv_format, backend="auto")
    answers, first_logits, digests = [], [], []
    for _ in range(20):
        model.clear()
        answers.append(hand.generate(stream("a", 72), 6))
        first_logits.append(next(logits for logits in model.logits if len(logits)))
        block_ids = [block_id for node in hand.cache.dump() for block_id in node.block_ids][:4]
        digests.append(hashlib.sha256(hand.store.read_blocks(block_ids)).hexdigest())
    assert len(set(map(tuple, answers))) == 1
    assert len(set(digests)) == 1
    for logits in first_logits:
        torch.testing.assert_close(logits, first_logits[0], atol=1e-3, rtol=0)


@by_format
def test_what_is_cached_and_how_a_prompt_is_cut_change_no_bit(kv_format):
    """Where the kernels can be built: they sum each row in one order, and a row's codes are its own."""

    def logits_of(hand):
        hand.model.clear()
        hand.generate(prompt, 4)
        return torch.cat([logits for logits in hand.model.logits if len(logits)])

    def new_hand(**settings):
        model = RecordingModel(reference_model())
        return HandEngine(model=model, kv_format=kv_format, backend="auto", **settings)

    prompt = stream("a", 150)
    hand = new_hand()
    cold = logits_of(hand)
    variants = {"warm": logits_of(hand)}
    for chunk in (7, 64):
        hand = new_hand(max_batch_tokens=chunk)
        hand.generate(stream("a", 90) + stream("b", 20))
        variants[f"a hit of 90 rows, chunks of {chunk}"] = logits_of(hand)
    variants["blocks of 32"] = logits_of(new_hand(block_size=32))
    tolerance = 0 if products_are_batch_invariant() else 1e-3
    for name, logits in variants.items():
        assert (logits - cold).abs().max() <= tolerance, name


@pytest.mark.parametrize("kv_format", [FP16, INT8, INT4], ids=["fp16", "int8", "int4"])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("windows", [(), (AttentionWindow(12, num_sinks=2), None)], ids=["", "window"])
def test_b76_every_combination_serves(kv_format, head_dim, windows):
    """Cache on and off, chunked and at once, three block sizes; the second and third prompts hit."""
    model = tiny_decoder(num_query_heads=2, num_kv_heads=1, head_dim=head_dim, windows=windows)
    rounded = RoundedModel(model, kv_format, NO_FIXED_SCALES)
    prompts = [stream("a", 20), stream("a", 20) + stream("b", 5), stream("a", 17) + stream("c", 9)]
    answers = [dense_greedy(rounded, prompt, 2) for prompt in prompts]
    for use_cache, chunk, block_size in itertools.product((True, False), (512, 7), (8, 16, 32)):
        hand = HandEngine(
            model=model, kv_format=kv_format, block_size=block_size, max_batch_tokens=chunk, backend="auto"
        )
        assert [hand.generate(prompt, 2, use_cache=use_cache) for prompt in prompts] == answers
        assert hand.engine.stats().tokens.cached == (20 + 17 if use_cache else 0)
