"""Fixed scales: what they are made of, and that nothing but the model and the format decides them."""

import pytest
import torch
from support.delegating_model import DelegatingModel
from support.dense_attention import DenseCache, dense_forward
from support.recording_model import RecordingModel
from support.tiny_model import tiny_decoder

from prefixcache_worker.attention.calibration import (
    MARGINS,
    CalibrationAttention,
    calibrate,
    spread_ids,
)
from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.quantize import MIN_SCALE
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape, AttentionWindow
from prefixcache_worker.model.scripted_model import ScriptedModel

FIXED = [KvScales.HEAD, KvScales.TENSOR, KvScales.CHANNEL]


TEXT_IDS = range(5, 900, 7)


def peaks_of(model, prompts):
    """Largest magnitudes of keys and values over the prompts, by plain attention: [layers, heads, dim]."""
    caches = [DenseCache(model.attention_shape) for _ in prompts]
    dense_forward(model, caches, prompts, [len(prompt) for prompt in prompts])
    for kind in ("keys", "values"):
        rows = [torch.cat([getattr(cache, kind)[layer] for cache in caches]) for layer in range(2)]
        yield torch.stack(rows).abs().amax(1)


@pytest.mark.parametrize("dtype", [KvDtype.INT8, KvDtype.INT4])
@pytest.mark.parametrize("scales", FIXED)
def test_a_scale_covers_the_peak_of_those_that_share_it_and_a_margin(scales, dtype):
    model = tiny_decoder()
    fixed = calibrate(model, KvFormat(dtype, scales), text_ids=TEXT_IDS)
    peaks = peaks_of(model, [spread_ids(model).tolist(), TEXT_IDS])
    for kind, peak, scale in zip(("keys", "values"), peaks, fixed, strict=True):
        if scales is KvScales.HEAD:
            peak = peak.amax(2, keepdim=True).expand(2, 2, 16)
        if scales is KvScales.TENSOR:
            peak = peak.amax((1, 2), keepdim=True).expand(2, 2, 16)
        if scales is KvScales.CHANNEL and kind == "values":
            assert scale is None
            continue
        torch.testing.assert_close(scale, peak * MARGINS[dtype] / dtype.max_code, atol=0, rtol=1e-4)


@pytest.mark.parametrize("kv_format", [FP32, KvFormat(KvDtype.INT4, KvScales.TOKEN_HEAD)])
def test_where_no_scale_is_fixed_the_model_does_not_run(kv_format):
    class Untouchable(DelegatingModel):
        def forward(self, batch, attention):
            raise AssertionError

    assert calibrate(Untouchable(tiny_decoder()), kv_format) == (None, None)


def test_the_same_model_gives_the_same_scales():
    kv_format = KvFormat(KvDtype.INT4, KvScales.HEAD)
    first, second = (calibrate(tiny_decoder(), kv_format) for _ in range(2))
    assert torch.equal(first.keys, second.keys)
    assert torch.equal(first.values, second.values)


@pytest.mark.parametrize(("vocabulary_size", "context_length"), [(1000, 4096), (2, 100), (151_936, 16)])
def test_the_ids_are_spread_over_the_vocabulary_and_fit_the_context(vocabulary_size, context_length):
    model = ScriptedModel([1], vocabulary_size=vocabulary_size, eos_token_id=0, context_length=context_length)
    prompt = spread_ids(model)
    assert len(prompt) == min(512, context_length)
    assert 0 <= prompt.min() <= prompt.max() < vocabulary_size
    eighths = torch.bincount(prompt * 8 // vocabulary_size, minlength=8)
    if vocabulary_size >= 8:
        assert eighths.min() >= len(prompt) // 8 - 1
    assert torch.equal(prompt, spread_ids(model))


@pytest.mark.parametrize("num_text_ids", [0, 5, 600])
def test_no_prompt_is_longer_than_the_context(num_text_ids):
    model = RecordingModel(tiny_decoder(context_length=20))
    calibrate(model, KvFormat(KvDtype.INT8, KvScales.HEAD), text_ids=[7] * num_text_ids)
    lengths = [len(batch.token_ids) for batch in model.batches]
    assert lengths == [20, *([min(num_text_ids, 20)] if num_text_ids else [])]


def test_a_model_of_zero_rows_has_scales_too():
    model = ScriptedModel([1], vocabulary_size=10, eos_token_id=0)
    keys, values = calibrate(model, KvFormat(KvDtype.INT8, KvScales.TENSOR))
    assert (keys == MIN_SCALE).all()
    assert (values == MIN_SCALE).all()


@pytest.mark.parametrize(("kind", "bad"), [("keys", torch.nan), ("values", torch.inf)])
def test_a_model_that_is_not_finite_is_refused(kind, bad):
    class Broken(DelegatingModel):
        def forward(self, batch, attention):
            class Spoiling:
                def attend(self, layer, query, key, value):
                    if layer == 1:
                        (key if kind == "keys" else value)[3, 1, 5] = bad
                    return attention.attend(layer, query, key, value)

            return super().forward(batch, Spoiling())

    sentence = (
        rf"^--kv-scales head: the {kind} of layer 1 are not finite when the model reads the calibration"
    )
    with pytest.raises(ConfigError, match=sentence):
        calibrate(Broken(tiny_decoder()), KvFormat(KvDtype.INT8, KvScales.HEAD))


@pytest.mark.parametrize("window", [None, AttentionWindow(3), AttentionWindow(2, num_sinks=2)])
def test_the_model_reads_the_prompt_by_its_own_attention(window):
    """Grouped heads, a scale of its own and windows, against a loop over queries in float64."""
    shape = AttentionShape(
        num_layers=1, num_query_heads=6, num_kv_heads=2, head_dim=4, windows=(window,), score_scale=0.3
    )
    torch.manual_seed(0)
    query, key, value = torch.randn(7, 6, 4), torch.randn(7, 2, 4), torch.randn(7, 2, 4)
    attended = CalibrationAttention(shape).attend(0, query, key, value)
    for position in range(7):
        rows = [
            row
            for row in range(position + 1)
            if window is None or row > position - window.size or row < window.num_sinks
        ]
        for head in range(6):
            scores = 0.3 * key[rows, head // 3].double() @ query[position, head].double()
            expected = scores.softmax(0) @ value[rows, head // 3].double()
            torch.testing.assert_close(attended[position, head].double(), expected, atol=1e-5, rtol=1e-5)
