"""`prefixcache bench`: load on a server, and what came of it."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.figures import Figure, figures_table, percentile
from prefixcache_client.command_line.load_flags import (
    add_arrivals,
    add_target,
    arrivals_from,
    require_target_flags,
    target_from,
)
from prefixcache_client.command_line.output import console, share, write_result
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.measurement import Measurement, RequestResult
from prefixcache_client.load.ramp import was_answered
from prefixcache_client.load.runner import Runner
from prefixcache_client.load.workloads.flags import add_workload_flags, workload_from
from prefixcache_client.load.workloads.shared_prefix import SharedPrefix

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers

WORKLOADS = {"shared-prefix": SharedPrefix}


def add_parser(subparsers: Subparsers) -> None:
    """`bench`, and below it one subcommand for each workload."""
    bench = subparsers.add_parser("bench", help="put load on a server and measure it")
    loads = bench.add_subparsers(dest="workload", metavar="WORKLOAD", required=True)
    for name, workload in WORKLOADS.items():
        doc = workload.__doc__ or ""
        parser = loads.add_parser(name, help=doc.partition("\n")[0], description=doc)
        add_workload_flags(parser, workload)
        add_arrivals(parser)
        add_target(parser)
        common.add_json(parser)
        parser.set_defaults(run=run, error=parser.error, workload_class=workload)


def run(arguments: argparse.Namespace) -> int:
    """Send the load and report it. Returns 130 after Ctrl-C, with a report of what there was until then.

    Raises PrefixCacheClientError, after the report, when a request failed.
    """
    require_target_flags(arguments)
    measurement, refusals = asyncio.run(_measure(arguments))
    write_result(_figures(measurement), arguments.json, partial(figures_table, title=arguments.workload))
    if measurement.was_interrupted:
        return 130
    if refusals:
        raise PrefixCacheClientError(_failures(measurement, refusals))
    return 0


async def _measure(arguments: argparse.Namespace) -> tuple[Measurement, dict[str, str]]:
    """What came of the load, and the sentence that came with each kind of failure."""
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    target = target_from(arguments)
    try:
        workload = workload_from(arguments, arguments.workload_class, seed=seed)
        workload = workload.fitted_to(await target.describe())
        arrivals = arrivals_from(arguments, workload, seed=seed, keeps=was_answered)
        total = arguments.requests if arguments.duration is None else None
        with _LoadProgress(total, to_stderr=arguments.json == "-") as progress:
            runner = Runner(
                workload,
                target,
                arrivals,
                duration_seconds=arguments.duration,
                max_requests=arguments.requests,
                on_result=progress.note,
            )
            with _interrupting(runner):
                return await runner.run(), runner.refusals
    finally:
        await target.close()


class _LoadProgress:
    """A bar on the terminal: how many were answered, and how many were not."""

    def __init__(self, num_requests: int | None, *, to_stderr: bool) -> None:
        screen = console(stderr=to_stderr)
        self._progress = Progress(
            TextColumn("{task.fields[ended]:,} answered, {task.fields[failed]:,} failed"),
            BarColumn(),
            TimeElapsedColumn(),
            console=screen,
            transient=True,
            disable=not screen.is_terminal,
        )
        self._bar = self._progress.add_task("", total=num_requests, ended=0, failed=0)
        self._counts: Counter[bool] = Counter()

    def __enter__(self) -> _LoadProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, result: RequestResult) -> None:
        """One more request has ended."""
        self._counts[result.error is None] += 1
        self._progress.update(self._bar, advance=1, ended=self._counts[True], failed=self._counts[False])


@contextmanager
def _interrupting(runner: Runner) -> Iterator[None]:
    """Let the first Ctrl-C end the load with what there is, and the second one everything at once."""
    loop = asyncio.get_running_loop()
    load = asyncio.current_task()
    assert load is not None

    def interrupt() -> None:
        runner.interrupt()
        loop.remove_signal_handler(signal.SIGINT)
        loop.add_signal_handler(signal.SIGINT, load.cancel)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _failures(measurement: Measurement, refusals: dict[str, str]) -> str:
    """One sentence on the requests that failed."""
    counts = Counter(result.error for result in measurement.results if result.error is not None)
    reasons = "; ".join(f"{count:,} x {code}: {refusals[code]}" for code, count in counts.most_common())
    return f"{counts.total():,} of {len(measurement.results):,} requests failed: {reasons}"


def _figures(measurement: Measurement) -> list[Figure]:
    """The figures of the table."""
    answered = [result for result in measurement.results if result.error is None]
    prompt = sum(result.prompt_tokens for result in answered)
    cached = sum(result.cached_tokens or 0 for result in answered)
    output = sum(result.output_tokens for result in answered)
    firsts = [seconds for result in answered if (seconds := result.first_token_seconds) is not None]
    return [
        Figure("requests answered", len(answered), "", note=f"of {len(measurement.results)}"),
        *(
            Figure(f"first token p{percent}", percentile(firsts, percent), "s")
            for percent in (50, 90, 99)
            if firsts
        ),
        Figure("output", output / max(measurement.seconds, 1e-9), "tokens/s", note=f"{output:,} tokens"),
        Figure("prompt tokens cached", cached, "tokens", note=f"{share(cached, prompt)} of {prompt:,}"),
    ]
