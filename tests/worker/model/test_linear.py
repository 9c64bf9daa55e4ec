"""Packed products equal plain ones, and the fallback serves where nothing can be packed."""

import pytest
import torch

from prefixcache_worker.model import linear as module
from prefixcache_worker.model.linear import linear, pack_weight


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 64])
def test_linear_is_the_product(monkeypatch, packs, num_rows):
    monkeypatch.setattr(module, "HAS_ONEDNN", packs and module.HAS_ONEDNN)
    torch.manual_seed(0)
    inputs, weight = torch.randn(num_rows, 48), torch.randn(80, 48)
    expected = (inputs.double() @ weight.double().T).float()
    torch.testing.assert_close(linear(inputs, pack_weight(weight)), expected, atol=1e-5, rtol=1e-5)


def test_rows_of_a_wider_tensor_need_no_copy():
    inputs, weight = torch.randn(5, 96)[:, 48:], torch.randn(80, 48)
    torch.testing.assert_close(linear(inputs, pack_weight(weight)), inputs @ weight.T, atol=1e-4, rtol=1e-5)


def test_other_devices_keep_their_weights():
    weight = torch.empty(8, 4, device="meta")
    assert pack_weight(weight) is weight
    assert linear(torch.empty(3, 4, device="meta"), weight).shape == (3, 8)
