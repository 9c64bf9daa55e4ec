"""Arguments that several subcommands have in common."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from prefixcache_client.channel import DEFAULT_ADDRESS, tenant_metadata
from prefixcache_client.messages import GenerateOptions

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ADDRESS_VARIABLE = "PREFIXCACHE_ADDRESS"


def add_connection(parser: argparse.ArgumentParser) -> None:
    """`--address`, `--tenant` and `--deadline`."""
    add_address(parser)
    parser.add_argument("--tenant", type=tenant, default="default", help="who asks (default: %(default)s)")
    add_deadline(parser)


def add_address(parser: argparse.ArgumentParser) -> None:
    """`--address`."""
    parser.add_argument(
        "--address",
        default=os.environ.get(_ADDRESS_VARIABLE, DEFAULT_ADDRESS),
        metavar="HOST:PORT",
        help=f"where the worker listens (default: {_ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS})",
    )


def add_deadline(parser: argparse.ArgumentParser) -> None:
    """`--deadline`."""
    parser.add_argument(
        "--deadline", type=positive_float, metavar="SECONDS", help="give up a call after this time"
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen and when an answer ends."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=positive_int, default=256, help="default: %(default)s")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    group.add_argument("--top-p", type=float)
    group.add_argument("--top-k", type=int)
    group.add_argument("--seed", type=non_negative_int, help="makes the answer repeatable")
    group.add_argument("--stop", action="append", default=[], help="end before this text; may be repeated")


def sampling_options(arguments: argparse.Namespace) -> GenerateOptions:
    """What `add_sampling` read."""
    options: GenerateOptions = {
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "stop": arguments.stop,
    }
    if arguments.top_p is not None:
        options["top_p"] = arguments.top_p
    if arguments.top_k is not None:
        options["top_k"] = arguments.top_k
    if arguments.seed is not None:
        options["seed"] = arguments.seed
    return options


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument(
        "--json",
        type=json_path,
        metavar="FILE",
        help="write the figures as JSON to this file; '-' writes them to standard output instead of the text",
    )


def tenant(value: str) -> str:
    """A tenant's name."""
    try:
        tenant_metadata(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def json_path(value: str) -> str:
    """A file that can be made, checked before any work is done for it."""
    if value != "-" and not Path(value).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{Path(value).parent} is no directory")
    return value


def positive_int(value: str) -> int:
    """An integer of at least 1."""
    return _integer(value, minimum=1)


def non_negative_int(value: str) -> int:
    """An integer of at least 0."""
    return _integer(value, minimum=0)


def positive_float(value: str) -> float:
    """A number above 0."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {value!r}")
    return number


def _integer(value: str, *, minimum: int) -> int:
    if not value.isascii() or not value.isdigit() or not minimum <= int(value) < 2**32:
        raise argparse.ArgumentTypeError(f"must be an integer from {minimum} to {2**32 - 1}, got {value!r}")
    return int(value)
