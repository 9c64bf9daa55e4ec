"""Whether the load generator holds a rate: on one core against a stub that has another, and a slow one."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from report import Row

from prefixcache_client.load.arrivals import Arrivals, ConstantRate, Poisson
from prefixcache_client.load.grpc_target import GrpcTarget
from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.runner import Runner
from prefixcache_client.load.workloads import SharedPrefix
from prefixcache_client.load.workloads.amount import Amount

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `support`, as pytest has it
from support.stub_target import OUTPUT_TOKENS, stub_target

FAST_RATE, FAST_SECONDS = 2000, 10
SLOW_RATE, SLOW_SECONDS, SLOW_LATENCY_SECONDS = 50, 20, 1.0
TOLERANCE = 0.03


class Load(NamedTuple):
    """A measurement, and what it took."""

    measurement: Measurement
    cpu_seconds: float


def rate_rows() -> list[Row]:
    """2,000 a second on one core; and 50 a second, evenly and at random, at a latency of a second."""
    cores = os.sched_getaffinity(0)
    with stub_target() as address:
        os.sched_setaffinity(0, {min(cores)})
        try:
            fast = asyncio.run(_send(address, ConstantRate(rate=FAST_RATE), FAST_SECONDS))
        finally:
            os.sched_setaffinity(0, cores)
    with stub_target(delay_seconds=SLOW_LATENCY_SECONDS) as address:
        evenly, at_random = asyncio.run(_send_slowly(address))
    return [_held_row(fast), _late_row(fast), _cpu_row(fast), _count_row("evenly", evenly, TOLERANCE),
            _count_row("at random", at_random, 0.1)]  # fmt: skip


async def _send_slowly(address: str) -> list[Load]:
    """Both at the same time: neither is more than a trickle."""
    arrivals = ConstantRate(rate=SLOW_RATE), Poisson(rate=SLOW_RATE, seed=1)
    return await asyncio.gather(*(_send(address, each, SLOW_SECONDS) for each in arrivals))


async def _send(address: str, arrivals: Arrivals, seconds: float) -> Load:
    workload = SharedPrefix(
        prefix_tokens=Amount.fixed(16),
        suffix_tokens=Amount.fixed(8),
        output_tokens=Amount.fixed(OUTPUT_TOKENS),
    )
    gc.freeze()  # as the command does
    target = GrpcTarget(address)
    try:
        runner = Runner(workload, target, arrivals, duration_seconds=seconds)
        begun = time.process_time()
        measurement = await runner.run()
        return Load(measurement, time.process_time() - begun)
    finally:
        await target.close()


def _held_row(load: Load) -> Row:
    """The rate over the whole time, and in its worst second."""
    sent = sorted(result.sent for result in load.measurement.results)
    answered = sum(result.error is None for result in load.measurement.results)
    held = (len(sent) - 1) / (sent[-1] - sent[0])
    by_second = Counter(map(int, sent))
    counts = [by_second[second] for second in range(FAST_SECONDS)]
    return Row(
        name=f"rate held on one core, {FAST_RATE:,} requests/s planned for {FAST_SECONDS} s",
        value=held,
        unit="requests/s",
        spread=f"{min(counts):,} to {max(counts):,} in a second",
        bar=f"within {TOLERANCE:.0%} of {FAST_RATE:,}, every request answered",
        holds=abs(held / FAST_RATE - 1) <= TOLERANCE and answered == len(sent) == FAST_RATE * FAST_SECONDS,
        note="gRPC, streams of two messages; the stub has another core",
    )


def _late_row(load: Load) -> Row:
    late = sorted(result.late_seconds for result in load.measurement.results)
    return Row(
        name="sent after its time, p99",
        value=1000 * late[int(0.99 * len(late))],
        unit="ms",
        note=f"median {1000 * late[len(late) // 2]:.2f} ms, at most {1000 * late[-1]:.1f} ms",
    )


def _cpu_row(load: Load) -> Row:
    return Row(
        name="CPU time of the load generator for a request",
        value=1e6 * load.cpu_seconds / len(load.measurement.results),
        unit="us",
    )


def _count_row(how: str, load: Load, tolerance: float) -> Row:
    """Case B138: as many as planned, whatever the latency."""
    results = load.measurement.results
    planned = SLOW_RATE * SLOW_SECONDS
    share = len(results) / planned
    gaps = [later.sent - earlier.sent for earlier, later in itertools.pairwise(results)]
    return Row(
        name=f"sent {how}, {SLOW_RATE} a second for {SLOW_SECONDS} s, each taking {SLOW_LATENCY_SECONDS:g} s",
        value=len(results),
        unit="requests",
        bar=f"within {tolerance:.0%} of {planned:,}",
        holds=abs(share - 1) <= tolerance
        and all(result.error is None for result in results)
        and all(result.total_seconds >= SLOW_LATENCY_SECONDS for result in results),
        note=f"gaps {1000 * min(gaps):.1f} to {1000 * max(gaps):.1f} ms",
    )
