"""`prefixcache top`: a worker at work, in the terminal."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from rich.live import Live

from prefixcache_client.client import Client
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import console
from prefixcache_client.command_line.top_frame import Reading, draw_frame
from prefixcache_client.errors import PermissionDeniedError

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

_TREE_DEPTH = 4
"""Hot prefixes are near the root, and all nodes would be much to send every time."""


def add_parser(subparsers: Subparsers) -> None:
    """`top`."""
    parser = subparsers.add_parser(
        "top",
        help="watch a worker: its pool, hit ratio, requests, latencies and hottest prefixes",
        description="Shows the worker anew every few seconds until Ctrl-C. Who is no admin sees its tenant.",
    )
    parser.add_argument(
        "--interval",
        type=common.deadline,
        default=2.0,
        metavar="SECONDS",
        help="from one look to the next (default: %(default)g)",
    )
    parser.add_argument("--once", action="store_true", help="print what there is now, and end")
    common.add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw one frame, or one after another until somebody interrupts."""
    screen = console()
    with common.connect(arguments) as client:
        if arguments.once:
            screen.print(draw_frame(read(client), None))
            return 0
        before: Reading | None = None
        with Live(console=screen, screen=screen.is_terminal, auto_refresh=False) as live:
            while True:
                reading = read(client)
                frame = draw_frame(reading, before)
                if screen.is_terminal:
                    live.update(frame, refresh=True)
                else:  # a file, or another program
                    screen.print(frame)
                before = reading
                time.sleep(arguments.interval)


def read(client: Client) -> Reading:
    """What the worker says now. Only an admin is told all its figures; others get their tenant's usage."""
    try:
        stats, usage = client.stats(), None
    except PermissionDeniedError:
        stats, usage = None, client.usage()[0]
    return Reading(
        seconds=time.monotonic(),
        address=client.address,
        model=client.model_info(),
        stats=stats,
        usage=usage,
        live=client.requests(),
        tree=client.tree(max_depth=_TREE_DEPTH),
    )
