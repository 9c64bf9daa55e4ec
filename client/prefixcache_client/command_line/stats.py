"""`prefixcache stats`: the counts of a worker."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.table import Table

from prefixcache_client.cache_answers import BlockStats, Stats
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import share, size, write_result

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`stats`."""
    parser = subparsers.add_parser("stats", help="show blocks, tokens and requests of a worker")
    parser.add_argument("--reset-peaks", action="store_true", help="start the peaks anew after reading them")
    common.add_connection(parser)
    common.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the counts as a table."""
    with common.connect(arguments) as client:
        stats = client.stats(reset_peaks=arguments.reset_peaks)
    write_result(stats, arguments.json, stats_table)
    return 0


def stats_table(stats: Stats) -> Table:
    """Every count, and what it means in bytes or percent where that says more."""
    table = Table("", "count", "", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    sections: dict[str, Any] = {"blocks": stats.blocks, "tokens": stats.tokens, "requests": stats.requests}
    sections |= {f"tier {tier.name}": tier for tier in stats.tiers}
    for title, values in sections.items():
        table.add_row(title, "", "", style="bold")
        for field in fields(values):
            value = getattr(values, field.name)
            if isinstance(value, str):
                continue
            name = f"  {field.name.replace('_', ' ')}"
            table.add_row(name, f"{value:,}", _remark(stats, values, field.name, value))
    return table


def _remark(stats: Stats, section: Any, name: str, value: int) -> str:
    if name == "used_slots":
        return share(value, section.live * section.block_size)
    if name == "peak_used_slots":
        return share(value, section.peak_live * section.block_size)
    if isinstance(section, BlockStats) and name not in ("evicted", "copied", "block_bytes", "block_size"):
        return size(value * section.block_bytes)
    if name == "cached":
        return share(value, stats.tokens.prompt)
    if name == "kv_rows_read":
        return share(value, stats.tokens.kv_rows_unshared)
    return ""
