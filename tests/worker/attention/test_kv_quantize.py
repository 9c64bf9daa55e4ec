"""Codes and scales against their definitions, on ordinary rows and on the worst ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.attention.quantize import (
    MAX_SCALE,
    MIN_SCALE,
    encode,
    pack_nibbles,
    row_scales,
    unpack_nibbles,
)

MAX_CODES = [7, 127]


def round_trip(rows, max_code):
    """(what the rows read back as, their scales)."""
    scales = row_scales(rows, max_code)
    codes = encode(rows, scales.float().unsqueeze(-1), max_code)
    return codes.float() * scales.float().unsqueeze(-1), scales


@pytest.mark.parametrize("max_code", MAX_CODES)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=32),
    st.integers(-24, 12),
)
def test_no_element_is_further_off_than_half_a_step(max_code, elements, exponent):
    """From rows far below the smallest scale to the largest; code * scale is exact in float32."""
    row = torch.tensor([elements]) * 2.0**exponent
    back, scale = round_trip(row, max_code)
    half = scale.double() / 2
    assert ((row.double() - back.double()).abs() <= half).all()
    wanted = max(float(row.abs().max()) / max_code, MIN_SCALE)
    assert float(scale) == pytest.approx(wanted, rel=2**-9)


@pytest.mark.parametrize("max_code", MAX_CODES)
def test_the_definition(max_code):
    """scale = float16(max|x| / max_code), code = x / scale to the nearest, halves to even."""
    row = torch.tensor([[1.5 * max_code, -1.5 * max_code, 1.5, -1.5, 0.75, 2.25, -2.26, 0.0]])
    assert row_scales(row, max_code).tolist() == [1.5]
    codes = encode(row, torch.tensor([[1.5]]), max_code)
    assert codes.tolist() == [[max_code, -max_code, 1, -1, 0, 2, -2, 0]]


@pytest.mark.parametrize("max_code", MAX_CODES)
def test_codes_are_made_with_the_scale_as_it_is_stored(max_code):
    """0.1 is no float16: codes for the unrounded scale would be off in the last places."""
    torch.manual_seed(0)
    rows = torch.randn(1000, 64) * 0.1
    scales = row_scales(rows, max_code).float().unsqueeze(-1)
    expected = (rows.double() / scales.double()).round().clamp(-max_code, max_code)
    assert torch.equal(encode(rows, scales, max_code).double(), expected)


@pytest.mark.parametrize("max_code", MAX_CODES)
def test_zero_rows_stay_zero(max_code):
    back, scales = round_trip(torch.zeros(3, 8), max_code)
    assert scales.tolist() == [MIN_SCALE] * 3
    assert not back.any()


@pytest.mark.parametrize("max_code", MAX_CODES)
def test_rows_beyond_every_scale_saturate(max_code):
    back, scales = round_trip(torch.tensor([[1e30, -1e30, 1.0]]), max_code)
    assert scales.tolist() == [MAX_SCALE]
    assert back.tolist() == [[max_code * MAX_SCALE, -max_code * MAX_SCALE, 0.0]]


@pytest.mark.parametrize("max_code", MAX_CODES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_reads_back_as_nan(max_code, bad):
    rows = torch.ones(3, 8)
    rows[1, 5] = bad
    back, _ = round_trip(rows, max_code)
    assert back[1].isnan().all()
    torch.testing.assert_close(back[[0, 2]], rows[[0, 2]], atol=0, rtol=1e-3)


def test_nibbles_lie_in_the_documented_order():
    codes = torch.tensor([[-7, 7, 0, -1]], dtype=torch.int8)
    packed = pack_nibbles(codes)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == [[1 | 15 << 4, 8 | 7 << 4]]
    assert torch.equal(unpack_nibbles(packed), codes)


@given(st.lists(st.integers(-7, 7), min_size=2, max_size=40))
def test_packing_loses_nothing(codes):
    tensor = torch.tensor(codes[: len(codes) // 2 * 2], dtype=torch.int8)
    assert torch.equal(unpack_nibbles(pack_nibbles(tensor)), tensor)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("sign", [1, -1])
def test_b26_nothing_but_the_row_widens_its_range(head_dim, sign):
    """Our int4 is symmetric: the range is +-max|x|, whatever the head size, and not a bit wider.

    Values in [5, 6] lie 6/7 apart, so they are off by 3/7 at most; a row of equal values is exact up to
    the rounding of its scale.
    """
    torch.manual_seed(head_dim)
    rows = sign * (5 + torch.rand(50, head_dim))
    back, scales = round_trip(rows, 7)
    assert torch.equal(scales, (rows.abs().amax(-1) / 7).half())
    assert (back - rows).abs().max() <= 6 / 7 / 2 + 1e-3
    equal, _ = round_trip(torch.full((1, head_dim), sign * 5.3), 7)
    torch.testing.assert_close(equal, torch.full((1, head_dim), sign * 5.3), atol=0, rtol=2**-11)


@pytest.mark.parametrize("max_code", MAX_CODES)
def test_b26_heads_of_other_range_do_not_matter(max_code):
    torch.manual_seed(0)
    rows = torch.randn(1, 2, 96)
    alone, _ = round_trip(rows, max_code)
    beside, _ = round_trip(torch.cat((rows, 1000 * torch.randn(1, 1, 96)), dim=1), max_code)
    assert torch.equal(beside[:, :2], alone)
