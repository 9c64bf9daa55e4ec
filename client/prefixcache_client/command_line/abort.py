"""`prefixcache abort`: end a request that runs or waits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import console

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`abort`."""
    parser = subparsers.add_parser("abort", help="end a request of the tenant that runs or waits")
    parser.add_argument("request_id", type=common.text, metavar="ID", help="its request id")
    common.add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Say what became of it; 1 when there was nothing to end."""
    with common.connect(arguments) as client:
        was_live = client.abort(arguments.request_id)
    if was_live:
        console().print(f"{arguments.request_id}: ended")
        return 0
    console(stderr=True).print(f"{arguments.request_id}: no request of this id runs or waits")
    return 1
