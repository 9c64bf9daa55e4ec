"""The kernel's products: each format's exact definition, and rows that do not depend on one another."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.tiny_model import tiny_decoder

from prefixcache_worker import native_library
from prefixcache_worker.model import native_linear
from prefixcache_worker.model.model import ForwardBatch
from prefixcache_worker.model.native_linear import PackedWeight
from prefixcache_worker.model.weight_format import quantize_channels

FORMATS = ("fp32", "bf16", "int8")
SHAPES = ((1, 1), (16, 64), (33, 63), (47, 65), (48, 128), (49, 131), (97, 576), (200, 257))
"""(out_features, in_features) around the widths of panels, pairs and groups"""
HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
PROCESSORS = ("native", "haswell", "x86-64") if HAS_AVX2 else ("native",)
"""What the kernel is compiled for: the machine itself, and less than most machines have."""


@pytest.fixture(params=PROCESSORS)
def processor(request, monkeypatch):
    """Compiles the kernel for a processor. Later tests get the machine's own again."""
    flags = [flag.replace("native", request.param) for flag in native_library.FLAGS]
    monkeypatch.setattr(native_library, "FLAGS", tuple(flags))
    native_linear._library.cache_clear()
    yield request.param
    native_linear._library.cache_clear()


@pytest.fixture
def keeps_threads():
    """The test may change the number of threads."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


def random_product(num_rows: int, out_features: int, in_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs whose sizes differ by group, and a weight whose sizes differ by channel."""
    generator = torch.Generator().manual_seed(out_features + in_features)
    inputs = torch.randn(num_rows, in_features, generator=generator)
    weight = torch.randn(out_features, in_features, generator=generator)
    sizes = torch.linspace(-2, 2, in_features).exp(), torch.linspace(-2, 2, out_features).exp()
    return inputs * sizes[0], weight * sizes[1][:, None]


def int8_product(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The definition, in float64 where the kernel sums in float32."""
    values, scales = quantize_channels(weight)
    padding = -inputs.shape[1] % 64
    groups = F.pad(inputs, (0, padding)).unflatten(1, (-1, 64))  # [num_rows, num_groups, 64]
    value_groups = F.pad(values, (0, padding)).unflatten(1, (-1, 64))
    maxima = groups.abs().amax(dim=2)
    quantised = (groups * (127 / maxima)[:, :, None]).round().nan_to_num(0)
    sums = torch.einsum("mgk,ngk->mng", quantised.double(), value_groups.double())
    return (sums * (maxima / 127).double()[:, None, :]).sum(dim=2) * scales.double()


def exact_product(inputs: torch.Tensor, weight: torch.Tensor, weight_format: str) -> torch.Tensor:
    """What a product is, in float64."""
    if weight_format == "int8":
        return int8_product(inputs, weight)
    if weight_format == "bf16":
        inputs, weight = inputs.bfloat16(), weight.bfloat16()
    return inputs.double() @ weight.double().T


@pytest.mark.parametrize("weight_format", FORMATS)
def test_products_are_what_the_format_says(processor, weight_format):
    for out_features, in_features in SHAPES:
        inputs, weight = random_product(19, out_features, in_features)
        products = PackedWeight(weight, weight_format).multiply(inputs).double()
        terms = inputs.double().abs() @ weight.double().abs().T  # float32 sums err by a share of these
        error = (products - exact_product(inputs, weight, weight_format)).abs() / terms
        assert error.max() < 2e-6, (out_features, in_features)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_is_the_same_in_every_batch(processor, weight_format):
    inputs, weight = random_product(70, 49, 131)
    packed = PackedWeight(weight, weight_format)
    alone = torch.cat([packed.multiply(inputs[row : row + 1]) for row in range(70)])
    for num_rows in range(2, 71):
        assert torch.equal(packed.multiply(inputs[:num_rows]), alone[:num_rows]), num_rows
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    assert torch.equal(packed.multiply(inputs[order]), alone[order])


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_is_the_same_in_a_long_prefill_and_for_every_number_of_threads(keeps_threads, weight_format):
    inputs, weight = random_product(300, 97, 131)
    packed = PackedWeight(weight, weight_format)
    torch.set_num_threads(1)
    products = packed.multiply(inputs)
    torch.set_num_threads(3)
    assert torch.equal(packed.multiply(inputs), products)
    assert torch.equal(packed.multiply(inputs[250:]), products[250:])


def test_bf16_is_exact_where_float32_is():
    inputs = torch.randint(-16, 17, (9, 131)).float()
    weight = torch.randint(-16, 17, (49, 131)).float()
    assert torch.equal(PackedWeight(weight, "bf16").multiply(inputs), inputs @ weight.T)


def test_int8_is_exact_for_integers_up_to_127():
    inputs, weight = torch.randint(-127, 128, (9, 128)).float(), torch.randint(-127, 128, (49, 128)).float()
    inputs[:, ::64] = 127
    weight[:, 0] = -127
    assert torch.equal(PackedWeight(weight, "int8").multiply(inputs), inputs @ weight.T)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_spoilt_row_stays_spoilt_and_spoils_no_other(processor, weight_format, value):
    inputs, weight = random_product(9, 49, 131)
    packed = PackedWeight(weight, weight_format)
    products = packed.multiply(inputs)
    inputs[4, 100] = value
    spoilt = packed.multiply(inputs)
    assert not spoilt[4].isfinite().any()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(spoilt[others], products[others])


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 1e30])
def test_int8_inputs_of_any_size(size):
    weight = torch.randn(49, 131, generator=torch.Generator().manual_seed(0))
    products = PackedWeight(weight, "int8").multiply(torch.full((2, 131), size))
    expected = size * weight.sum(dim=1).expand(2, -1)
    torch.testing.assert_close(products, expected, atol=0.3 * size if size > 1e-30 else 1e-28, rtol=0)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_logits_of_a_batch_are_those_of_each_token_alone(keeps_threads, weight_format):
    torch.set_num_threads(1)  # hundreds of tiny products
    model = tiny_decoder(weight_format=weight_format)

    class OwnValue:
        def attend(self, layer, query, key, value):
            return value.repeat_interleave(model.attention_shape.group_size, dim=1)

    def logits(token_ids: torch.Tensor) -> torch.Tensor:
        count = len(token_ids)
        batch = ForwardBatch(token_ids, token_ids % 50, torch.full((count,), 99), torch.arange(count))
        return model.forward(batch, OwnValue())

    token_ids = torch.randint(1000, (40,), generator=torch.Generator().manual_seed(2))
    alone = torch.cat([logits(token_ids[row : row + 1]) for row in range(40)])
    for num_tokens in (2, 3, 8, 17, 40):
        assert torch.equal(logits(token_ids[:num_tokens]), alone[:num_tokens]), num_tokens
