"""What each format takes, what it is called, and which settings do not go together."""

import pytest
from support.kv_formats import FORMATS

from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat, KvScales, choose_format
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape
from prefixcache_worker.settings import SETTINGS

SMOLLM2 = AttentionShape(num_layers=30, num_query_heads=9, num_kv_heads=3, head_dim=64)


def test_seven_billion_model_takes_half_a_mebibyte_per_token():
    """2 * 32 layers * 32 heads * 128 elements * 2 bytes = 524,288 bytes."""
    shape = AttentionShape(num_layers=32, num_query_heads=32, num_kv_heads=32, head_dim=128)
    assert KvFormat(KvDtype.FP16).block_bytes(shape, 1) == 524_288
    assert KvFormat(KvDtype.FP16).block_bytes(shape, 16) == 16 * 524_288


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("fp32", 46_080),
        ("fp16", 23_040),
        ("bf16", 23_040),
        ("int8/token-head", 11_520 + 360),  # a scale of two bytes for each of 2 * 30 * 3 heads
        ("int8/head", 11_520),
        ("int8/tensor", 11_520),
        ("int8/channel", 11_520 + 180),  # values alone have scales in the rows
        ("int4/token-head", 5_760 + 360),
        ("int4/head", 5_760),
        ("int4/tensor", 5_760),
        ("int4/channel", 5_760 + 180),
    ],
)
def test_the_bytes_of_a_token_count_rows_and_scales(name, num_bytes):
    by_name = {kv_format.name: kv_format for kv_format in FORMATS}
    assert len(by_name) == 11
    assert by_name[name].block_bytes(SMOLLM2, 1) == num_bytes
    assert by_name[name].block_bytes(SMOLLM2, 16) == 16 * num_bytes


def test_channel_scales_are_for_keys():
    kv_format = KvFormat(KvDtype.INT4, KvScales.CHANNEL)
    assert kv_format.keys.has_fixed_scales
    assert kv_format.values.has_row_scales


@pytest.mark.parametrize(
    ("dtype", "scales", "expected"),
    [
        ("fp32", None, FP32),
        ("bf16", None, KvFormat(KvDtype.BF16)),
        ("int8", None, KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD)),
        ("int4", "tensor", KvFormat(KvDtype.INT4, KvScales.TENSOR)),
    ],
)
def test_two_settings_choose_a_format(dtype, scales, expected):
    assert choose_format(dtype, scales, SMOLLM2) == expected


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_floats_have_no_scales(dtype):
    with pytest.raises(ConfigError, match=rf"^--kv-scales head: only .*, not --kv-dtype {dtype}; drop one$"):
        choose_format(dtype, "head", SMOLLM2)


def test_two_to_a_byte_need_an_even_number():
    odd = AttentionShape(num_layers=1, num_query_heads=1, num_kv_heads=1, head_dim=5)
    with pytest.raises(ConfigError, match=r"^--kv-dtype int4: .* two elements .* heads have 5; use int8$"):
        choose_format("int4", None, odd)
    assert choose_format("int8", None, odd).name == "int8/token-head"


def test_the_settings_offer_what_there_is():
    """The settings spell the names out, because whoever reads them must not wait for torch."""
    offered = {setting.name: setting for setting in SETTINGS}
    for name, names in (("kv_dtype", KvDtype), ("kv_scales", KvScales), ("kv_layout", LayoutOrder)):
        texts = [each.value for each in names]
        assert all(offered[name].accepts(text) for text in texts)
        assert offered[name].expects == "one of " + ", ".join(texts)


def test_an_unknown_format_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r"^--kv-dtype: 'fp8' is not one of fp32, fp16, bf16, int8, int4$"):
        WorkerConfig(kv_dtype="fp8")
    with pytest.raises(ConfigError, match=r"^--kv-scales: 'row' is not one of token-head, head, tensor, ch"):
        WorkerConfig(kv_dtype="int8", kv_scales="row")
