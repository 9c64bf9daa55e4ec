"""`prefixcache bench`: load on a running worker."""

from __future__ import annotations

import argparse
import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from rich.progress import Progress

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line import bench_compare
from prefixcache_client.command_line.figures import figures_table
from prefixcache_client.command_line.output import console, write_result
from prefixcache_client.command_line.shared_prefix import SharedPrefixLoad

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

_COUNTS = ("prefix_tokens", "suffix_tokens", "output_tokens", "requests", "concurrency", "tenants")


def add_parser(subparsers: Subparsers) -> None:
    """`bench shared-prefix`."""
    bench = subparsers.add_parser("bench", help="measure a running worker")
    loads = bench.add_subparsers(dest="load", metavar="LOAD", required=True)
    bench_compare.add_parser(loads)
    parser = loads.add_parser(
        "shared-prefix",
        help="prompts with one common beginning, from several tenants",
        description="Warms the cache with the common beginning, then sends every request once. More than one"
        " tenant needs a worker without keys that was started with --trust-tenant-header.",
    )
    defaults = SharedPrefixLoad()
    for name in _COUNTS:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=common.positive_int,
            default=getattr(defaults, name),
            metavar="N",
            help="default: %(default)s",
        )
    parser.add_argument(
        "--seed",
        type=common.non_negative_int,
        metavar="N",
        help="repeats the prompts of an earlier run, which may then be cached whole (default: new ones)",
    )
    common.add_address(parser)
    common.add_api_key(parser)
    common.add_deadline(parser)
    common.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the load and print the figures. Returns 1 when a request failed."""
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    load = SharedPrefixLoad(**{name: getattr(arguments, name) for name in _COUNTS}, seed=seed)
    screen = console(stderr=arguments.json == "-")
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("requests", total=load.requests)
        figures = asyncio.run(
            load.run(
                arguments.address,
                api_key=arguments.api_key,
                deadline=arguments.deadline,
                progress=lambda: progress.advance(bar),
            )
        )
    write_result(figures, arguments.json, partial(figures_table, title="shared prefix"))
    return 1 if any(figure.name.startswith("failed") for figure in figures) else 0
