"""`prefixcache baseline`: what a worker does on a fixed matrix of loads, recorded and compared."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from prefixcache_client.async_client import AsyncClient
from prefixcache_client.baseline.comparison import compare
from prefixcache_client.baseline.recorder import Recorder
from prefixcache_client.baseline.recording import Recording, read_recording
from prefixcache_client.baseline.scenario import MATRIX, Scenario
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.baseline_tables import comparison_table, recording_table
from prefixcache_client.command_line.output import console, write_result
from prefixcache_client.command_line.own_worker import own_worker

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`baseline record` and `baseline compare`."""
    parser = subparsers.add_parser(
        "baseline", help="record what a worker does on a fixed matrix of loads, and compare two records"
    )
    commands = parser.add_subparsers(dest="baseline_command", metavar="COMMAND", required=True)
    record = commands.add_parser(
        "record",
        help="measure a worker and write a file",
        description="Takes a worker through short and long prompts, one request and many, and several batch"
        " sizes, round after round. Starts a worker for that, or measures a running one, which should have"
        " nothing else to do; needs an admin.",
    )
    record.add_argument("file", type=common.file_path, metavar="FILE", help="where to write the baseline")
    common.add_force(record)
    record.add_argument(
        "--target",
        type=common.address,
        metavar="HOST:PORT",
        help="a running worker; without it one is started, with the arguments behind --worker",
    )
    common.add_tls(record)
    common.add_api_key(record)
    record.add_argument(
        "--rounds", type=_rounds, default=5, metavar="N", help="at least 2 (default: %(default)s)"
    )
    record.add_argument(
        "--scenarios",
        type=_scenarios,
        default=list(MATRIX),
        metavar="NAME;...",
        help="which, by name, divided by ';': " + "; ".join(scenario.name for scenario in MATRIX),
    )
    record.add_argument(
        "--label", type=common.text, default="", help="what is special that no setting says, such as a commit"
    )
    record.add_argument(
        "--worker",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="WORKER ARGUMENTS",
        help="all that follows is for the worker that is started",
    )
    record.set_defaults(run=_record, error=record.error)
    comparing = commands.add_parser(
        "compare",
        help="what differs between two files, and whether one change made it",
        description="A difference is shown where the 95 % intervals of the means part, and credited to a"
        " change only when nothing else changed.",
    )
    comparing.add_argument("before", type=Path, metavar="BEFORE")
    comparing.add_argument("after", type=Path, metavar="AFTER")
    common.add_json(comparing)
    common.add_force(comparing)
    comparing.set_defaults(run=_compare)


def _record(arguments: argparse.Namespace) -> int:
    common.require_new_files(arguments, arguments.file)
    if arguments.target is not None and arguments.worker:
        arguments.error("--worker: its arguments are for a worker that is started, not for --target")
    if arguments.target is None and common.tls(arguments) is not None:
        arguments.error(
            "--tls and its files are for a --target: the worker that is started has no encryption"
        )
    screen = console(stderr=True)
    with ExitStack() as stack:
        progress = stack.enter_context(
            Progress(console=screen, transient=True, disable=not screen.is_terminal)
        )
        address = arguments.target
        if address is None:
            start = progress.add_task("starting a worker", total=None)
            address = stack.enter_context(own_worker(*arguments.worker))
            progress.remove_task(start)
        recording = asyncio.run(_measure(address, arguments, progress))
    recording.write(Path(arguments.file))
    console().print(recording_table(recording))
    return 0


async def _measure(address: str, arguments: argparse.Namespace, progress: Progress) -> Recording:
    bar = progress.add_task("measuring", total=(1 + arguments.rounds) * len(arguments.scenarios))
    async with AsyncClient(address, api_key=arguments.api_key, tls=common.tls(arguments)) as client:
        recorder = Recorder(
            client,
            arguments.scenarios,
            num_rounds=arguments.rounds,
            label=arguments.label,
            progress=lambda: progress.advance(bar),
        )
        return await recorder.record()


def _compare(arguments: argparse.Namespace) -> int:
    common.require_new_files(arguments, arguments.json)
    before, after = (read_recording(path) for path in (arguments.before, arguments.after))
    comparison = compare(before, after)
    write_result(comparison.as_json(), arguments.json, lambda _: comparison_table(comparison))
    return 0


def _scenarios(value: str) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in MATRIX}
    names = [name.strip() for name in value.split(";") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"must be some of {'; '.join(known)}, got {value!r}")
    return [known[name] for name in dict.fromkeys(names)]


def _rounds(value: str) -> int:
    number = common.positive_int(value)
    if number < 2:
        raise argparse.ArgumentTypeError("must be at least 2: one value has no spread")
    return number
