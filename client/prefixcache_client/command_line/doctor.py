"""`prefixcache doctor`: finds out what is wrong with a worker's KV cache."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.status import Status

from prefixcache_client.async_client import AsyncClient
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.doctor_view import report_view, verification_view
from prefixcache_client.command_line.output import console, write_result
from prefixcache_client.command_line.own_worker import own_worker
from prefixcache_client.doctor.examination import PROFILED_STEPS, STEPS, examine
from prefixcache_client.doctor.report import Report, load_report
from prefixcache_client.doctor.verification import verify
from prefixcache_client.errors import PermissionDeniedError, PrefixCacheClientError, UnimplementedError

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

EXIT_FINDINGS = 3
"""Something is wrong, or answers differ."""
_CALL_SECONDS = 300.0
"""No call of the doctor takes so long unless the worker hangs."""
_STEP_NUMBERS = {**{name: number for number, name in STEPS.items()}, **{str(n): n for n in STEPS}}


class DoctorError(PrefixCacheClientError):
    """The worker cannot be examined."""


def add_parser(subparsers: Subparsers) -> None:
    """`doctor`, and `doctor verify`."""
    parser = subparsers.add_parser(
        "doctor",
        help="find out what is wrong with a worker's KV cache, step by step",
        description="Examines a running worker, or one that it starts for itself. Exit status: 0 healthy,"
        f" {EXIT_FINDINGS} something is wrong, 1 it could not be examined.",
    )
    parser.add_argument(
        "--target",
        type=common.address,
        metavar="HOST:PORT",
        help="the running worker; without it one is started for the examination",
    )
    parser.add_argument("--model", help="what that one serves (default: the built-in model)")
    chosen = parser.add_mutually_exclusive_group()
    names = ", ".join(f"{number} {name}" for number, name in STEPS.items())
    for flag, what in (("--only", "take"), ("--skip", "leave out")):
        chosen.add_argument(
            flag,
            nargs="+",
            choices=_STEP_NUMBERS,
            metavar="STEP",
            help=f"{what} these steps, by number or name: {names}",
        )
    parser.add_argument("--quick", action="store_true", help="time fewer steps: less is certain of step 1")
    common.add_json(parser)
    parser.add_argument(
        "--trace",
        type=common.file_path,
        metavar="FILE",
        help="write the profile of step 4 for chrome://tracing or ui.perfetto.dev, such as trace.json.gz",
    )
    common.add_force(parser)
    common.add_tls(parser)
    common.add_api_key(parser)
    parser.add_argument(
        "--worker",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="...",
        help="everything behind this is for the worker that is started, such as --kv-dtype int8",
    )
    parser.set_defaults(run=run, error=parser.error)
    _add_verify(parser.add_subparsers(dest="doctor_command", metavar="verify"))


def _add_verify(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="compare two reports of the doctor: is it faster, and are the answers the same?",
        description="Exit status: 0 the answers are the same and nothing new is wrong,"
        f" {EXIT_FINDINGS} otherwise.",
    )
    parser.add_argument("before", metavar="BEFORE.json", help="what doctor --json wrote before the fix")
    parser.add_argument("after", metavar="AFTER.json", help="and after it")
    common.add_json(parser)
    common.add_force(parser)
    parser.set_defaults(run=run_verify)


def run(arguments: argparse.Namespace) -> int:
    """Examine, show the report, and say by the exit status whether something is wrong."""
    if arguments.target is not None and (arguments.model is not None or arguments.worker):
        arguments.error("--target is a worker that runs already: leave out --model and --worker")
    if arguments.target is None and common.tls(arguments) is not None:
        arguments.error(
            "--tls and its files are for a --target: the worker that is started has no encryption"
        )
    only = arguments.only or STEPS.values()
    steps = {_STEP_NUMBERS[name] for name in only} - {_STEP_NUMBERS[name] for name in arguments.skip or ()}
    if not steps:
        arguments.error("no step is left")
    if arguments.trace is not None and not steps & PROFILED_STEPS:
        arguments.error("--trace is written in step 4, which is left out")
    common.require_new_files(arguments, arguments.json, arguments.trace)
    with ExitStack() as stack:
        screen = console(stderr=arguments.json == "-")
        status = stack.enter_context(screen.status("starting a worker"))
        address = arguments.target
        if address is None:
            model = ("--model", arguments.model) if arguments.model else ()
            address = stack.enter_context(own_worker(*model, *arguments.worker))
        report, trace = asyncio.run(_examine(address, arguments, steps, status))
    if arguments.trace is not None:
        Path(arguments.trace).write_bytes(trace)
    write_result(report, arguments.json, report_view)
    return 0 if report.is_healthy else EXIT_FINDINGS


def run_verify(arguments: argparse.Namespace) -> int:
    """Compare two reports."""
    common.require_new_files(arguments, arguments.json)
    verification = verify(load_report(arguments.before), load_report(arguments.after))
    write_result(verification, arguments.json, verification_view)
    return 0 if verification.holds else EXIT_FINDINGS


async def _examine(
    address: str, arguments: argparse.Namespace, steps: set[int], status: Status
) -> tuple[Report, bytes]:
    own = arguments.target is None
    async with AsyncClient(
        address,
        api_key=None if own else arguments.api_key,
        tls=None if own else common.tls(arguments),
        deadline=_CALL_SECONDS,
    ) as client:
        try:
            return await examine(
                client,
                steps=steps,
                quick=arguments.quick,
                with_trace=arguments.trace is not None,
                on_step=status.update,
            )
        except UnimplementedError:
            raise DoctorError(f"{address}: this is no prefixcache worker, or an older one") from None
        except PermissionDeniedError:
            raise DoctorError(
                f"{address}: the doctor needs the key of an admin; set PREFIXCACHE_API_KEY"
            ) from None
