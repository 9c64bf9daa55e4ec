"""`prefixcache events`: what comes into the cache and leaves it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prefixcache_client.cache_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
    StateComplete,
)
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import count, printable

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`events`."""
    parser = subparsers.add_parser("events", help="follow what comes into the cache and leaves it")
    parser.add_argument(
        "--from",
        type=common.sequence_number,
        dest="from_sequence_number",
        metavar="NUMBER",
        help="begin with this event (default: with all that is cached now)",
    )
    parser.add_argument(
        "--json-lines", action="store_true", help="one JSON object a line, with block keys in hexadecimal"
    )
    common.add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write a line for each event until somebody interrupts."""
    line = json_line if arguments.json_lines else text_line
    with common.connect(arguments) as client:
        for event in client.watch_events(from_sequence_number=arguments.from_sequence_number):
            sys.stdout.write(line(event) + "\n")
            sys.stdout.flush()
    return 0


def text_line(event: CacheEvent) -> str:
    """An event for people."""
    match event:
        case BlocksStored():
            kind = "public" if event.public else "private"
            blocks = count(len(event.block_keys), f"{kind} block")
            tokens = count(len(event.token_ids), "token")
            what = f"stored   {blocks}, {tokens}, the last is {event.block_keys[-1].hex()}"
        case BlocksRemoved():
            what = f"removed  {count(len(event.block_keys), 'block')}, {printable(event.cause)}"
        case CacheCleared():
            what = "cleared"
        case StateComplete():
            what = "this was all that was cached; what follows are changes"
    return f"{event.sequence_number}  {what}"


def json_line(event: CacheEvent) -> str:
    """An event for programs."""
    return json.dumps({"event": _SNAKE_NAMES[type(event)], **asdict(event)}, default=_hexadecimal)


_SNAKE_NAMES = {
    BlocksStored: "stored",
    BlocksRemoved: "removed",
    CacheCleared: "cleared",
    StateComplete: "state_complete",
}


def _hexadecimal(value: Any) -> str:
    assert isinstance(value, bytes)
    return value.hex()
