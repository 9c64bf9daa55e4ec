"""`prefixcache serve`: becomes the worker."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from prefixcache_client.worker_process import WorkerProcessError

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

_WORKER_MODULES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "gguf",
    "jinja2",
    "grpc_health",
    "grpc_reflection",
    "grpc_status",
    "google.rpc",
    "prometheus_client",
    "llguidance",
    "cryptography",
)


def add_parser(subparsers: Subparsers) -> None:
    """Every argument after `serve`, `--help` too, is the worker's."""
    parser = subparsers.add_parser(
        "serve", help="start a worker; takes the worker's own arguments", add_help=False
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the worker, so that signals reach it directly. Does not return."""
    require_worker()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefixcache_worker", *arguments.rest])


def require_worker() -> None:
    """Raise WorkerProcessError when the worker's own dependencies are not installed."""
    missing = [name for name in _WORKER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise WorkerProcessError(
            f"the worker needs {', '.join(missing)}: install it with pip install 'prefixcache[worker]'"
        )
