"""`prefixcache replay`: a recorded trace through caches of several policies and sizes, without a model."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefixcache import POLICIES, TenantQuota
from prefixcache.replay import Comparison, LeftOut, Trace, read_trace
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import console, write_result
from prefixcache_client.command_line.pictures import picture_path, require_matplotlib
from prefixcache_client.command_line.replay_picture import draw_picture
from prefixcache_client.command_line.replay_result import ReplayResult, replay_tables, write_csv

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

_FORMATS = """\
TRACE is in Mooncake's format, or a coding-agent session or a folder of such sessions, or has lines like

  {"t": 0.25, "tenant": "acme", "block_size": 16, "token_ids": [1, 2, 3], "output_length": 8}

with the arrival in seconds and the prompt, either as "token_ids" or as one number for each of its blocks,
"hash_ids". Such a line may have "model" and "salt", "public_tokens" (so many at the beginning may be shared
with other tenants) and, beside "token_ids", "output_ids" (the tokens generated).
"""


def add_parser(subparsers: Subparsers) -> None:
    """`replay TRACE`."""
    parser = subparsers.add_parser(
        "replay",
        help="compare policies, sizes and quotas of the cache on a recorded trace",
        description="Takes the requests of a trace through a cache of each policy and size, without a model.",
        epilog=_FORMATS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", metavar="TRACE", help="the file or folder, see below")
    parser.add_argument(
        "--policies",
        type=_policies,
        default=POLICIES,
        metavar="NAME,...",
        help=f"which of {', '.join(POLICIES)}; or all (default)",
    )
    parser.add_argument(
        "--capacities",
        type=_capacities,
        default=(1_000, 3_000, 10_000, 30_000),
        metavar="BLOCKS,...",
        help="sizes of the cache in blocks (default: 1000,3000,10000,30000)",
    )
    for name, what in (("floor", "never evicted for other tenants"), ("ceiling", "the most it may hold")):
        parser.add_argument(
            f"--{name}",
            type=_tenant_blocks,
            action="append",
            default=[],
            metavar="TENANT=BLOCKS",
            help=f"blocks of a tenant: {what}; may be repeated",
        )
    parser.add_argument("--limit", type=common.positive_int, metavar="N", help="stop after N requests")
    parser.add_argument(
        "--skip-broken",
        action="store_true",
        help="leave out lines and requests that are broken, and say which",
    )
    parser.add_argument("--optimum", action="store_true", help="also what a cache that knows the future hits")
    common.add_json(parser)
    parser.add_argument("--csv", type=common.file_path, metavar="FILE", help="write the same rows as CSV")
    parser.add_argument(
        "--picture",
        type=picture_path,
        metavar="FILE",
        help="draw the hit ratio against the size: .png or .svg",
    )
    common.add_force(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay, and show what came of it; after Ctrl-C, what came of it until then.

    Raises KeyboardInterrupt then.
    """
    common.require_new_files(arguments, arguments.json, arguments.csv, arguments.picture)
    if arguments.picture is not None:
        require_matplotlib()
    left_out = LeftOut()
    trace = read_trace(arguments.trace, on_broken=left_out if arguments.skip_broken else None)
    num_broken_requests = left_out.num_broken  # of sessions; lines are read later
    quotas = _quotas(arguments)
    comparison = Comparison(
        trace,
        policies=arguments.policies,
        capacities=arguments.capacities,
        quotas=quotas,
        with_optimum=arguments.optimum,
    )
    with _interruptible() as is_interrupted:
        screen = console(stderr=arguments.json == "-")
        num_requests = _replay(comparison, trace, arguments.limit, screen, is_interrupted)
    for sentence in left_out.sentences():
        print(f"prefixcache: {sentence}", file=sys.stderr)
    result = ReplayResult(
        trace=trace.name,
        block_size=trace.block_size,
        id_unit="token" if trace.has_tokens else "block",
        num_requests=num_requests,
        num_trace_requests=trace.num_requests - (left_out.num_broken - num_broken_requests),
        tenants=comparison.tenants(),
        quotas=quotas,
        rows=comparison.rows(),
    )
    write_result(result, arguments.json, replay_tables)
    if arguments.csv is not None:
        write_csv(result.rows, arguments.csv)
    if arguments.picture is not None:
        draw_picture(result, arguments.picture)
    if is_interrupted.is_set():
        raise KeyboardInterrupt
    return 0


def _replay(
    comparison: Comparison,
    trace: Trace,
    limit: int | None,
    screen: Console,
    is_interrupted: threading.Event,
) -> int:
    """Replay until the trace or the limit ends, or Ctrl-C comes; how many requests it was."""
    num_requests = 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("requests", total=min(trace.num_requests, limit or trace.num_requests))
        for request in islice(trace, limit):
            comparison.replay(request)
            num_requests += 1
            progress.advance(bar)
            if is_interrupted.is_set():
                break
    return num_requests


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one does what it always does.

    Requires: the main thread.
    """
    is_interrupted = threading.Event()
    previous = signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> None:
        is_interrupted.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def _quotas(arguments: argparse.Namespace) -> dict[str, TenantQuota]:
    floors, ceilings = dict(arguments.floor), dict(arguments.ceiling)
    return {
        tenant: TenantQuota(floor_blocks=floors.get(tenant, 0), ceiling_blocks=ceilings.get(tenant))
        for tenant in (floors | ceilings)
    }


def _policies(value: str) -> tuple[str, ...]:
    names = POLICIES if value == "all" else tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(
                f"must be all, or some of {','.join(POLICIES)}; {name!r} is no policy"
            )
    return names


def _capacities(value: str) -> tuple[int, ...]:
    return tuple(sorted({common.positive_int(number) for number in value.split(",")}))


def _tenant_blocks(value: str) -> tuple[str, int]:
    tenant, separator, number = value.rpartition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"must be TENANT=BLOCKS, got {value!r}")
    return tenant, common.non_negative_int(number)
