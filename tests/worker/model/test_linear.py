"""Products in every weight format against their definitions, with the kernel and without."""

import pytest
import torch

from prefixcache_worker.model import linear as module
from prefixcache_worker.model.linear import linear, pack_weight
from prefixcache_worker.model.native_linear import PackedWeight
from prefixcache_worker.model.weight_format import quantize_channels, rounded_weight

FORMATS = ("fp32", "bf16", "int8")
TOLERANCE = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.05}
"""Largest error against the float32 weight, for products of about 1."""


@pytest.fixture(params=["kernel", "onednn", "mm"])
def way(request, monkeypatch) -> str:
    monkeypatch.setattr(module, "HAS_ONEDNN", request.param == "onednn" and module.HAS_ONEDNN)
    if request.param != "kernel":
        monkeypatch.setattr(module, "products_are_batch_invariant", lambda: False)
    return request.param


def random_product(num_rows: int, out_features: int, in_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num_rows, in_features, generator=generator)
    return inputs, torch.randn(out_features, in_features, generator=generator) / in_features**0.5


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 64])
def test_linear_is_nearly_the_product(way, weight_format, num_rows):
    inputs, weight = random_product(num_rows, 80, 48)
    expected = (inputs.double() @ weight.double().T).float()
    tolerance = TOLERANCE[weight_format]
    product = linear(inputs, pack_weight(weight, weight_format))
    torch.testing.assert_close(product, expected, atol=tolerance, rtol=0)


def test_the_fallback_multiplies_by_the_values_of_the_format(monkeypatch):
    monkeypatch.setattr(module, "products_are_batch_invariant", lambda: False)
    inputs, weight = random_product(5, 80, 48)
    for weight_format in FORMATS:
        values = rounded_weight(weight, weight_format)
        product = linear(inputs, pack_weight(weight, weight_format))
        torch.testing.assert_close(product, inputs @ values.T, atol=1e-5, rtol=0)
        assert torch.equal(values, weight) == (weight_format == "fp32")


def test_the_kernel_holds_only_the_packed_weight():
    weight = torch.randn(960, 576)
    sizes = [pack_weight(weight, weight_format).num_bytes for weight_format in FORMATS]
    assert sizes == [960 * 576 * 4, 960 * 576 * 2, 960 * 576 + 960 * 4]


def test_rows_of_a_wider_tensor_count_as_they_are(way):
    wide, weight = torch.randn(5, 96), torch.randn(80, 48)
    product = linear(wide[:, 48:], pack_weight(weight))
    torch.testing.assert_close(product, wide[:, 48:] @ weight.T, atol=1e-4, rtol=1e-5)


def test_other_devices_multiply_plain_tensors():
    weight = torch.empty(8, 4, device="meta")
    assert pack_weight(weight) is weight
    assert pack_weight(weight, "bf16").dtype == torch.bfloat16
    for weight_format in ("fp32", "bf16"):
        product = linear(torch.empty(3, 4, device="meta"), pack_weight(weight, weight_format))
        assert product.shape == (3, 8)
        assert product.dtype == torch.float32


def test_channels_are_quantised_to_their_own_largest_magnitude():
    weight = torch.tensor([[0.0, 0.0, 0.0], [127.0, -126.4, 0.6], [1.1e-6, -2e-6, 0.4e-6]])
    values, scales = quantize_channels(weight)
    assert values.tolist() == [[0, 0, 0], [127, -126, 1], [70, -127, 25]]
    torch.testing.assert_close(scales, torch.tensor([0.0, 1.0, 2e-6 / 127]))


def test_a_machine_without_a_compiler_multiplies_by_torch(monkeypatch, caplog):
    def fails():
        raise module.NativeLibraryError("there is no C++ compiler")

    monkeypatch.setattr(module, "prepare_native_linear", fails)
    module.products_are_batch_invariant.cache_clear()
    with caplog.at_level("INFO"):
        assert not module.products_are_batch_invariant()
    assert not isinstance(pack_weight(torch.randn(8, 4)), PackedWeight)
    module.products_are_batch_invariant.cache_clear()
    assert "there is no C++ compiler" in caplog.text
