"""`prefixcache usage`: what tenants have cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from rich.table import Table

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import write_result
from prefixcache_client.prefix_answers import TenantUsage

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`usage`."""
    parser = subparsers.add_parser("usage", help="show what a tenant's requests have cost")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--of", type=common.tenant, metavar="TENANT", help="another tenant's")
    whose.add_argument("--all", action="store_true", help="those of all tenants")
    common.add_connection(parser)
    common.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one column for each tenant."""
    with common.connect(arguments) as client:
        usages = client.usage(tenant=arguments.of or "", all_tenants=arguments.all)
    write_result(usages, arguments.json, usage_table)
    return 0


def usage_table(usages: Sequence[TenantUsage]) -> Table:
    """One line for each figure."""
    table = Table("", *(usage.tenant or "(others)" for usage in usages), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for field in fields(TenantUsage)[1:]:
        name = field.name.removeprefix("num_").replace("_", " ")
        table.add_row(name, *(_figure(getattr(usage, field.name)) for usage in usages))
    return table


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
