"""Figures and how they are written."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from prefixcache_client.command_line.figures import Figure, figures_table
from prefixcache_client.command_line.output import seconds, share, size, write_json


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (2**30, "1.0 GiB"),
        (2**52, "4,096.0 TiB"),
    ],
)
def test_sizes_are_read_at_a_glance(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(("duration", "text"), [(0.0834, "83 ms"), (1.236, "1.24 s"), (1234.5, "1,234.50 s")])
def test_durations_are_read_at_a_glance(duration: float, text: str) -> None:
    assert seconds(duration) == text


def test_a_share_of_nothing_is_a_dash() -> None:
    assert (share(1, 8), share(0, 0)) == ("12.5 %", "-")


def test_the_table_shows_units_spread_and_note() -> None:
    screen = io.StringIO()
    figures = [
        Figure("first token", 0.1, "s", (0.05, 1.5)),
        Figure("KV", 2048, "bytes", note="[half]"),
        Figure("output", 37.64, "tokens/s"),
        Figure("requests", 1600, ""),
    ]
    Console(file=screen, width=80, markup=False).print(figures_table(figures, title="t"))

    printed = screen.getvalue()
    for text in ("100 ms", "50 ms to 1.50 s", "2.0 KiB", "[half]", "37.6 tokens/s", "1,600"):
        assert text in printed


def test_json_rows_have_the_fields_of_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    write_json([Figure("first token", 0.1, "s", (0.05, 1.5))], "-")

    assert json.loads(capsys.readouterr().out) == [
        {"name": "first token", "value": 0.1, "unit": "s", "spread": [0.05, 1.5], "note": ""}
    ]
