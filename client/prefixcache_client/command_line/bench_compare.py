"""`prefixcache bench compare`: two measurements side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import write_result
from prefixcache_client.load.report.json_file import read_measurement

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(loads: Subparsers) -> None:
    """`compare FIRST SECOND`."""
    parser = loads.add_parser(
        "compare",
        help="two measurements that were written with --json",
        description="Shows what differs between two measurements, and whether it is more than chance.",
    )
    parser.add_argument("first", metavar="FIRST", help="a file that `bench ... --json FILE` wrote")
    parser.add_argument("second", metavar="SECOND", help="another one; differences are SECOND minus FIRST")
    parser.add_argument(
        "--seed",
        type=common.seed,
        default=0,
        metavar="N",
        help="of the random draws that the intervals come from (default: %(default)s)",
    )
    common.add_json(parser)
    common.add_force(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison. Whatever it shows, it worked."""
    common.require_new_files(arguments, arguments.json)
    # They load numpy, which would make every other command slower to start.
    from prefixcache_client.load.report.compare import compare
    from prefixcache_client.load.report.comparison_view import comparison_view

    first, second = read_measurement(arguments.first), read_measurement(arguments.second)
    write_result(compare(first, second, seed=arguments.seed), arguments.json, comparison_view)
    return 0
