"""`prefixcache snapshot` and `prefixcache restore`: a worker's cache, to its folder and back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import count, seconds, size

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`snapshot` and `restore`."""
    for name, run, help_text in (
        ("snapshot", run_snapshot, "save a worker's cache to the folder that it was started with"),
        ("restore", run_restore, "fill a worker's empty cache from its last snapshot"),
    ):
        parser = subparsers.add_parser(name, help=help_text)
        common.add_connection(parser)
        parser.set_defaults(run=run)


def run_snapshot(arguments: argparse.Namespace) -> int:
    """Print what was saved."""
    with common.connect(arguments) as client:
        saved = client.snapshot()
    print(f"saved {count(saved.num_blocks, 'block')}, {size(saved.num_bytes)}, in {seconds(saved.seconds)}")
    return 0


def run_restore(arguments: argparse.Namespace) -> int:
    """Print what was restored."""
    with common.connect(arguments) as client:
        num_blocks = client.restore()
    print(f"restored {count(num_blocks, 'block')}")
    return 0
