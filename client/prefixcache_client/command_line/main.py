"""The entry point: parses the arguments, runs one subcommand, turns failures into one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from prefixcache import PrefixCacheError
from prefixcache_client.command_line import (
    abort,
    baseline,
    bench,
    chat,
    demo,
    doctor,
    events,
    explain,
    generate,
    health,
    keys,
    plan,
    prefix,
    replay,
    reset,
    schemes,
    serve,
    snapshot,
    stats,
    top,
    tree,
    usage,
)
from prefixcache_client.command_line.arguments import Parser
from prefixcache_client.command_line.output import printable
from prefixcache_client.errors import PrefixCacheClientError

_COMMANDS = (
    serve,
    keys,
    plan,
    generate,
    chat,
    abort,
    health,
    stats,
    top,
    tree,
    usage,
    prefix,
    explain,
    events,
    reset,
    snapshot,
    replay,
    demo,
    bench,
    baseline,
    schemes,
    doctor,
)
_BECOME_THE_WORKERS = ("serve", "keys", "plan")

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status: 0 when it worked, 1 when it failed, 130 after Ctrl-C.

    Raises SystemExit(2) for bad usage.
    """
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command not in _BECOME_THE_WORKERS:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.rest = rest
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone, as in `prefixcache tree | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (PrefixCacheClientError, PrefixCacheError, OSError) as error:
        print(f"prefixcache: {printable(str(error))}", file=sys.stderr)
        return EXIT_FAILED


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(prog="prefixcache", description="A prefix-sharing KV-cache service for language models.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('prefixcache')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
