"""`prefixcache plan`: becomes the worker's program that plans its memory."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from prefixcache_client.command_line.serve import require_worker

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Every argument after `plan`, `--help` too, is that program's."""
    parser = subparsers.add_parser(
        "plan", help="how many requests fit into a memory, and what to ask a worker for", add_help=False
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replace this process. Does not return. Raises WorkerProcessError without the worker's packages."""
    require_worker()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefixcache_worker.plan_command", *arguments.rest])
