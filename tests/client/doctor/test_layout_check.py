"""Step 2: the map of the pool, and the measured comparison of its orders."""

from __future__ import annotations

import pytest
from support.doctor_figures import layout

from prefixcache_client.doctor.finding import Verdict
from prefixcache_client.doctor.layout import (
    LayoutFigures,
    check_layout_map,
    check_layout_speed,
    packed_strides,
)

FASTER, SLOWER = {"layer-first": 1e-4, "head-first": 2e-4}, {"layer-first": 2e-4, "head-first": 1e-4}


def figures(*seconds: dict[str, float], asked: str | None = "layer-first", **place) -> LayoutFigures:
    return LayoutFigures(layout=layout(**place), asked_order=asked, seconds_by_order=seconds)


@pytest.mark.parametrize(
    ("order", "strides"), [("layer-first", (1024, 64, 32, 4)), ("head-first", (512, 32, 1024, 4))]
)
def test_strides_of_the_two_orders(order: str, strides: tuple[int, ...]) -> None:
    assert packed_strides((2, 16, 2, 8), 4, order) == strides
    finding = check_layout_map(figures(order=order, strides=strides, asked=order))
    assert finding.verdict is Verdict.HEALTHY
    assert finding.evidence["keys_strides_bytes"] == " ".join(map(str, strides))
    assert finding.evidence["keys_address"] == "0x1000"


@pytest.mark.parametrize(
    "strides",
    [
        (64, 128, 32, 4),  # token by token, layers inside
        (1024, 64, 4, 8),  # heads interleaved element by element
        (2048, 128, 32, 4),  # gaps
    ],
)
def test_a_pool_that_strides_is_a_fault(strides: tuple[int, ...]) -> None:
    finding = check_layout_map(figures(strides=strides))

    assert (finding.verdict, finding.pitfall) == (Verdict.FAULT, "layout-against-kernel")
    assert f"{strides[0]:,}, {strides[1]:,}, {strides[2]:,} and {strides[3]:,} bytes" in finding.sentence


def test_another_order_than_asked_for_is_a_fault() -> None:
    finding = check_layout_map(figures(asked="head-first"))

    assert finding.pitfall == "layout-against-kernel"
    assert "ask for head-first and the pool is layer-first" in finding.sentence


def test_a_slower_order_is_a_warning_when_every_measurement_says_so() -> None:
    finding = check_layout_speed(figures(SLOWER, SLOWER, SLOWER))

    assert (finding.verdict, finding.pitfall) == (Verdict.WARNING, "layout-against-kernel")
    assert finding.evidence["times_of_the_other_order"] == 2


@pytest.mark.parametrize("seconds", [[FASTER], [SLOWER, FASTER, SLOWER]])
def test_a_measurement_against_it_acquits(seconds: list[dict[str, float]]) -> None:
    assert check_layout_speed(figures(*seconds)).verdict is Verdict.HEALTHY


def test_without_two_orders_nothing_is_decided() -> None:
    assert check_layout_speed(figures({"layer-first": 1e-4})).verdict is Verdict.UNKNOWN
    assert check_layout_speed(figures()).verdict is Verdict.UNKNOWN
