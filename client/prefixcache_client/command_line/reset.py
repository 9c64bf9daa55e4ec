"""`prefixcache reset`: forgets all that is cached."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from prefixcache_client.command_line import arguments as common

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`reset --yes`."""
    parser = subparsers.add_parser("reset", help="forget everything that is cached, and all prefixes")
    parser.add_argument("--yes", action="store_true", help="really: it concerns all tenants")
    common.add_connection(parser)
    parser.set_defaults(run=run, error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Reset the cache."""
    if not arguments.yes:
        arguments.error("this forgets what all tenants have cached; say --yes to do it")
    with common.connect(arguments) as client:
        client.reset()
        print(f"{arguments.address} has forgotten all that was cached; running requests go on")
    return 0
