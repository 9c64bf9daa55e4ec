"""`prefixcache keys`: becomes the worker's program for its file of API keys."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Every argument after `keys`, `--help` too, is that program's."""
    parser = subparsers.add_parser("keys", help="add, list and revoke a worker's API keys", add_help=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replace this process. Needs nothing but what is always installed. Does not return."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefixcache_worker.keys_command", *arguments.rest])
