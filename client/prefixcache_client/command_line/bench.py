"""`prefixcache bench`: load on a server, and what came of it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line import bench_compare
from prefixcache_client.command_line.load_flags import (
    add_arrivals,
    add_target,
    arrivals_from,
    check_load_flags,
    positive,
    target_from,
)
from prefixcache_client.command_line.load_progress import LoadProgress
from prefixcache_client.command_line.output import console
from prefixcache_client.command_line.ramp_table import ramp_table
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.ramp import Ramp
from prefixcache_client.load.report.csv_file import write_csv
from prefixcache_client.load.report.html_page import write_html
from prefixcache_client.load.report.json_file import write_measurement
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import summarize
from prefixcache_client.load.report.terminal import summary_view, table_view
from prefixcache_client.load.runner import Runner
from prefixcache_client.load.workloads import Agents, Chat, RecordedTrace, SharedPrefix, Tenants, TextSessions
from prefixcache_client.load.workloads.flags import add_workload_flags, workload_from

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers
    from prefixcache_client.load.arrivals import Arrivals

WORKLOADS: dict[str, tuple[type[Any], str]] = {
    "shared-prefix": (SharedPrefix, "groups of users, each with a system prompt in common"),
    "chat": (Chat, "conversations of several turns"),
    "agents": (Agents, "agents that hand parts of their tasks to sub-agents"),
    "tenants": (Tenants, "tenants of very different size"),
    "trace": (RecordedTrace, "repeat a recorded trace"),
    "text-sessions": (TextSessions, "repeat recorded conversations"),
}

_EXIT_INTERRUPTED = 130
_DEFAULT_REQUESTS = 64
"""Of a workload without end that nobody gave one."""
_SLO_FIELDS = {
    "first-token": "first_token_seconds",
    "per-token": "seconds_per_token",
    "total": "total_seconds",
}


def add_parser(subparsers: Subparsers) -> None:
    """`bench`, and below it one subcommand for each workload and `compare`."""
    bench = subparsers.add_parser("bench", help="put load on a server and measure it")
    loads = bench.add_subparsers(dest="workload", metavar="WORKLOAD", required=True)
    for name, (workload, help_) in WORKLOADS.items():
        parser = loads.add_parser(name, help=help_, description=workload.__doc__)
        add_workload_flags(parser, workload)
        add_arrivals(parser)
        add_target(parser)
        _add_report(parser)
        parser.set_defaults(run=run, error=parser.error, workload_class=workload)
    bench_compare.add_parser(loads)


def run(arguments: argparse.Namespace) -> int:
    """Send the load and report it. Returns 130 after Ctrl-C, with a report of what there was until then, and
    after a second one without.

    Raises PrefixCacheClientError, after the report, when a request failed; of a ramp, when all did.
    """
    check_load_flags(arguments)
    common.require_new_files(arguments, arguments.json, arguments.csv, arguments.html)
    try:
        measurement, arrivals, refusals = asyncio.run(_measure(arguments))
    except asyncio.CancelledError:  # the second Ctrl-C
        return _EXIT_INTERRUPTED
    _report(arguments, measurement, arrivals)
    if measurement.was_interrupted:
        return _EXIT_INTERRUPTED
    is_expected = isinstance(arrivals, Ramp) and any(result.error is None for result in measurement.results)
    if refusals and not is_expected:  # a ramp may end with a server that refuses
        raise PrefixCacheClientError(_failures(measurement, refusals))
    return 0


async def _measure(arguments: argparse.Namespace) -> tuple[Measurement, Arrivals, dict[str, str]]:
    """What came of the load, how it was sent, and the first sentence that came with each kind of failure."""
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    target = target_from(arguments)
    try:
        try:
            workload = workload_from(arguments, arguments.workload_class, seed=seed)
        except ValueError as error:  # settings that do not go together
            arguments.error(str(error))
        workload = workload.fitted_to(await target.describe())
        for note in getattr(workload, "notes", ()):
            print(note, file=sys.stderr)
        arrivals = arrivals_from(arguments, workload, seed=seed, keeps=arguments.slo.is_kept)
        max_requests = arguments.requests
        is_endless = workload.num_sessions is None and arguments.duration is None
        if is_endless and max_requests is None and not isinstance(arrivals, Ramp):
            max_requests = _DEFAULT_REQUESTS
        with LoadProgress(
            num_requests=max_requests,
            duration_seconds=arguments.duration,
            to_stderr=arguments.json == "-",
        ) as progress:
            runner = Runner(
                workload,
                target,
                arrivals,
                duration_seconds=arguments.duration,
                max_requests=max_requests,
                on_result=progress.note,
            )
            gc.freeze()  # going through all that was imported would look like a pause of the server
            with _interrupting(runner):
                return await runner.run(), arrivals, runner.refusals
    finally:
        await target.close()


@contextmanager
def _interrupting(runner: Runner) -> Iterator[None]:
    """Let the first Ctrl-C end the load with what there is, and the second one everything at once."""
    loop = asyncio.get_running_loop()
    load = asyncio.current_task()
    assert load is not None

    def interrupt() -> None:
        runner.interrupt()
        print("waiting for what is in flight; Ctrl-C again ends at once", file=sys.stderr, flush=True)
        loop.add_signal_handler(signal.SIGINT, load.cancel)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _add_report(parser: argparse.ArgumentParser) -> None:
    """What is judged, and where it is written."""
    group = parser.add_argument_group("report")
    group.add_argument(
        "--slo",
        type=slo,
        default=Slo(),
        metavar="LIMITS",
        help="what a good answer keeps, in seconds, or a part: first-token=0.2,per-token=0.05,total=5",
    )
    common.add_json(group)
    group.add_argument("--csv", type=common.file_path, metavar="FILE", help="a line for each request")
    group.add_argument("--html", type=common.file_path, metavar="FILE", help="one page with charts")
    common.add_force(group)


def slo(value: str) -> Slo:
    """Limits by their names."""
    limits = {}
    for part in value.split(","):
        name, _, seconds = part.partition("=")
        if name not in _SLO_FIELDS or _SLO_FIELDS[name] in limits:
            raise argparse.ArgumentTypeError(f"must be of first-token=S,per-token=S,total=S, got {value!r}")
        limits[_SLO_FIELDS[name]] = positive(seconds)
    return Slo(**limits)


def _report(arguments: argparse.Namespace, measurement: Measurement, arrivals: Arrivals) -> None:
    summary = summarize(measurement, arguments.slo)
    if arguments.json != "-":
        console().print(summary_view(summary))
    if isinstance(arrivals, Ramp):
        table = ramp_table(arrivals, measurement.results)
        if arguments.json == "-":
            print(table.remark, file=sys.stderr)
        else:
            console().print(table_view(table))
    if arguments.json is not None:
        write_measurement(measurement, summary, arguments.json)
    if arguments.csv is not None:
        write_csv(measurement, arguments.csv)
    if arguments.html is not None:
        write_html(measurement, summary, arguments.html)


def _failures(measurement: Measurement, refusals: dict[str, str]) -> str:
    """One sentence on the requests that failed."""
    counts = Counter(result.error for result in measurement.results if result.error is not None)
    reasons = "; ".join(f"{count:,} x {code}: {refusals[code]}" for code, count in counts.most_common())
    return f"{counts.total():,} of {len(measurement.results):,} requests failed: {reasons}"
