"""`prefixcache health`: does the worker take requests? For probes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from prefixcache_client.command_line import arguments as common

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

EXIT_NOT_SERVING = 1
USUAL_DEADLINE_SECONDS = 5.0


def add_parser(subparsers: Subparsers) -> None:
    """`health`."""
    parser = subparsers.add_parser("health", help="exit with 0 if a worker takes requests, else with 1")
    common.add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what the worker says."""
    with common.connect(arguments) as client:
        deadline = USUAL_DEADLINE_SECONDS if arguments.deadline is None else arguments.deadline
        is_serving = client.health(deadline=deadline)
    print("serving" if is_serving else "not serving")
    return 0 if is_serving else EXIT_NOT_SERVING
