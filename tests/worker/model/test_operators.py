"""The row operators: the kernel against torch, and rows that do not depend on one another."""

import pytest
import torch

from prefixcache_worker.model import native_operators
from prefixcache_worker.model.operators import gelu_and_multiply, rms_norm, rotate, silu_and_multiply

NUM_ROWS = (1, 2, 17, 300)  # the last is enough for several threads


@pytest.fixture
def by_torch(monkeypatch):
    """Runs a call without the kernel."""

    def run(call):
        with monkeypatch.context() as patch:
            patch.setattr(native_operators, "takes", lambda inputs: False)
            return call()

    return run


def random(*shape: int, size: float = 1) -> torch.Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check_rows(operator, inputs: torch.Tensor, by_torch) -> None:
    """The kernel gives what torch gives, and gives each row the same alone."""
    assert native_operators.takes(inputs)
    outputs = operator(inputs)
    torch.testing.assert_close(outputs, by_torch(lambda: operator(inputs)), atol=5e-6, rtol=5e-6)
    for row in {0, len(inputs) // 2, len(inputs) - 1}:
        assert torch.equal(operator(inputs[row : row + 1])[0], outputs[row])


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("size", [1, 7, 48, 576])
def test_rms_norm(by_torch, num_rows, size):
    weight = 1 + random(size, size=0.1)
    check_rows(lambda rows: rms_norm(rows, weight, 1e-5), random(num_rows, size, size=30), by_torch)


def test_rms_norm_of_heads_and_of_nothing(by_torch):
    weight = random(16)
    heads = random(5, 9, 16)[:, 2:8]  # as a slice of the projection has them
    check_rows(lambda rows: rms_norm(rows, weight, 1e-5), heads, by_torch)
    assert rms_norm(torch.empty(0, 16), weight, 1e-5).shape == (0, 16)
    assert torch.equal(rms_norm(torch.zeros(2, 16), weight, 1e-5), torch.zeros(2, 16))


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("head_dim", [2, 6, 64])
def test_rotate(by_torch, num_rows, head_dim):
    angles = random(num_rows, 1, head_dim // 2, size=3)
    projected = random(num_rows, 5, head_dim)
    for heads in (projected, projected[:, 1:4], projected.transpose(0, 1).contiguous().transpose(0, 1)):
        rotated = rotate(heads, angles.cos(), angles.sin())
        expected = by_torch(lambda heads=heads: rotate(heads, angles.cos(), angles.sin()))
        torch.testing.assert_close(rotated, expected, atol=2e-6, rtol=2e-6)
        last = slice(num_rows - 1, num_rows)
        assert torch.equal(rotate(heads[last], angles[last].cos(), angles[last].sin())[0], rotated[-1])


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("size", [1, 7, 48, 1536])
@pytest.mark.parametrize("gate", [silu_and_multiply, gelu_and_multiply])
def test_gates(by_torch, gate, num_rows, size):
    check_rows(gate, random(num_rows, 2 * size, size=8), by_torch)


@pytest.mark.parametrize("gate", [silu_and_multiply, gelu_and_multiply])
def test_gates_far_from_zero_are_shut_or_open(gate):
    gates = torch.tensor([[-1e12, -200.0, -100.0, 0.0, 100.0, 1e12]])
    outputs = gate(torch.cat((gates, torch.ones(1, 6)), dim=1))
    torch.testing.assert_close(outputs, gates.clamp(min=0), atol=1e-6, rtol=1e-6)


def test_nan_stays_in_its_row():
    gate_up = random(3, 20)
    gate_up[1, 4] = torch.nan
    assert silu_and_multiply(gate_up).isnan().nonzero().tolist() == [[1, 4]]
    assert rms_norm(gate_up, torch.ones(20), 1e-5).isnan().any(dim=1).tolist() == [False, True, False]


def test_other_types_and_devices_are_left_to_torch():
    assert not native_operators.takes(torch.empty(2, dtype=torch.bfloat16))
    assert not native_operators.takes(torch.empty(2, device="meta"))
    assert rms_norm(torch.empty(2, 4, device="meta"), torch.empty(4, device="meta"), 1e-5).shape == (2, 4)
