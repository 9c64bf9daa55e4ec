"""The machine is measured beside the worker's own pool, in both layouts."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from support.hand_engine import HandEngine

from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.kv_format import choose_format
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.diagnosis import machine_speed
from prefixcache_worker.diagnosis.machine_speed import measure_machine


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_speed, "READ_BYTES", 1 << 20)


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize(("dtype", "scales"), [("fp32", None), ("int8", "token-head"), ("int4", "channel")])
def test_every_backend_and_format_is_measured_and_the_pool_left_alone(
    backend: str, dtype: str, scales: str | None
) -> None:
    probe = HandEngine()
    kv_format = choose_format(dtype, scales, probe.model.attention_shape)
    store = HandEngine(kv_format=kv_format).store
    before = [tensor.clone() for tensor in store.tensors()]
    speed = measure_machine(store, choose_backend(backend, store), num_rows=50)
    assert speed.read_bytes_per_second > 0
    assert speed.seconds_of_layout.keys() == set(LayoutOrder)
    assert all(seconds > 0 for seconds in speed.seconds_of_layout.values())
    for tensor, old in zip(store.tensors(), before, strict=True):
        assert torch.equal(tensor.view(torch.uint8), old.view(torch.uint8))


def test_figures_are_those_of_the_clock() -> None:
    """A clock that goes on by a second with each reading: whatever is timed takes one."""
    store = HandEngine().store
    ticks = count()
    speed = measure_machine(
        store, choose_backend("torch", store), num_rows=16, clock=lambda: float(next(ticks))
    )
    assert speed.read_bytes_per_second == 1 << 20
    assert speed.seconds_of_layout == dict.fromkeys(LayoutOrder, 0.5)  # two layers in a second
