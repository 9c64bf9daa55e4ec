"""`prefixcache schemes`: ways to keep KV, compared on one load with the same memory."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.progress import Progress

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import console, write_result
from prefixcache_client.command_line.own_worker import own_workers
from prefixcache_client.command_line.pictures import picture_path, require_matplotlib
from prefixcache_client.command_line.schemes_comparison import Scheme, SchemesComparison, Variant
from prefixcache_client.command_line.schemes_load import SchemesLoad
from prefixcache_client.command_line.schemes_picture import draw_picture
from prefixcache_client.command_line.schemes_result import SchemesResult, schemes_table

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

_BLOCK_SIZE = 16

SCHEMES = {
    "contiguous": Scheme("contiguous"),
    "paged": Scheme("paged"),
    "shared": Scheme("shared"),
    "shared-int8": Scheme("shared", "int8"),
    "shared-int4": Scheme("shared", "int4"),
}


def add_parser(subparsers: Subparsers) -> None:
    """`schemes`."""
    parser = subparsers.add_parser(
        "schemes",
        help="compare ways to keep KV: preallocated, paged, shared, quantised",
        description="Starts a worker for each scheme, all with the same KV memory, and sends each the same"
        " bursts of requests, in turn; every burst begins with a prefix that no worker has seen.",
    )
    parser.add_argument("--model", help="what the workers serve (default: the built-in model)")
    parser.add_argument(
        "--schemes",
        nargs="+",
        choices=SCHEMES,
        metavar="NAME",
        help=f"which of {', '.join(SCHEMES)} (default: all; with --block-sizes: shared)",
    )
    parser.add_argument(
        "--block-sizes", nargs="+", type=common.positive_int, metavar="N", help="compare these block sizes"
    )
    parser.add_argument("--batch", nargs="+", type=common.positive_int, default=[1, 8, 32], metavar="N",
                        help="requests at once (default: 1 8 32)")  # fmt: skip
    load = SchemesLoad()
    for name, minimum, what in (
        ("prefix", common.non_negative_int, "that the requests of a burst have in common"),
        ("suffix", common.positive_int, "of each prompt's own"),
        ("output", common.positive_int, "generated"),
    ):
        parser.add_argument(f"--{name}", type=minimum, default=getattr(load, f"{name}_tokens"),
                            metavar="N", help=f"tokens {what} (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--kv-memory", default="512MiB", metavar="SIZE", help="of each worker (default: %(default)s)"
    )
    parser.add_argument(
        "--context-length",
        type=common.positive_int,
        default=2048,
        metavar="N",
        help="what contiguous reserves for each request, in tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=common.positive_int, default=1, metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--seed", type=common.non_negative_int, default=0, help="of the prompts")
    common.add_json(parser)
    parser.add_argument(
        "--picture", type=picture_path, metavar="FILE", help="draw the comparison: .png or .svg"
    )
    parser.add_argument(
        "worker_arguments", nargs="*", metavar="-- WORKER ARGUMENTS", help="for all the workers"
    )
    parser.set_defaults(run=run, error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Compare, and show what came of it; the workers are gone when this returns or raises."""
    load = SchemesLoad(
        prefix_tokens=arguments.prefix, suffix_tokens=arguments.suffix, output_tokens=arguments.output
    )
    if load.num_tokens > arguments.context_length:
        arguments.error(
            f"a request has {load.num_tokens} tokens, and --context-length is {arguments.context_length}"
        )
    if arguments.picture is not None:
        require_matplotlib()
    result = _compare(arguments, load)
    write_result(result, arguments.json, schemes_table)
    if arguments.picture is not None:
        draw_picture(result, arguments.picture)
    return 0


def _compare(arguments: argparse.Namespace, load: SchemesLoad) -> SchemesResult:
    """Start the workers, all of them, and take them through the bursts in turn."""
    screen = console(stderr=arguments.json == "-")
    with ExitStack() as stack:
        progress = stack.enter_context(
            Progress(console=screen, transient=True, disable=not screen.is_terminal)
        )
        start = progress.add_task("starting the workers", total=None)
        variants = _variants(arguments)
        commands = [_worker_arguments(variant, arguments) for variant in variants]
        addresses = stack.enter_context(own_workers(commands))
        progress.remove_task(start)
        comparison = SchemesComparison(
            load,
            batches=sorted(set(arguments.batch)),
            num_rounds=arguments.rounds,
            seed=arguments.seed,
            progress=progress,
        )
        return asyncio.run(comparison.run(dict(zip(variants, addresses, strict=True))))


def _variants(arguments: argparse.Namespace) -> list[Variant]:
    """What is compared, in the order of the table."""
    names = arguments.schemes or (["shared"] if arguments.block_sizes else list(SCHEMES))
    return [
        Variant(name, SCHEMES[name], block_size)
        for name in dict.fromkeys(names)
        for block_size in sorted(set(arguments.block_sizes or [_BLOCK_SIZE]))
    ]


def _worker_arguments(variant: Variant, arguments: argparse.Namespace) -> list[str]:
    most = str(max(arguments.batch))
    return [
        *variant.scheme.worker_arguments(),
        *("--block-size", str(variant.block_size)),
        *("--kv-memory", arguments.kv_memory, "--kv-headroom", "0"),
        *("--context-length", str(arguments.context_length)),
        *("--max-running", most, "--max-waiting", most),
        *(("--model", arguments.model) if arguments.model else ()),
        *arguments.worker_arguments,
    ]
