"""The flags of a load: how fast, how long, at whom."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import NamedTuple

from prefixcache_client.channel import DEFAULT_ADDRESS, checked_address
from prefixcache_client.command_line import arguments as common
from prefixcache_client.load.arrivals import (
    MAX_RATE,
    Arrivals,
    Bursts,
    ClosedLoop,
    ConstantRate,
    Planned,
    Poisson,
)
from prefixcache_client.load.grpc_target import GrpcTarget
from prefixcache_client.load.measurement import RequestResult
from prefixcache_client.load.openai_url import checked_url
from prefixcache_client.load.ramp import Ramp
from prefixcache_client.load.runner import MAX_IN_FLIGHT
from prefixcache_client.load.session import Workload
from prefixcache_client.load.target import Target
from prefixcache_client.load.tenant_keys import TenantKeys, read_tenant_keys

_DEFAULT_CONCURRENCY = 16
_DEFAULT_DEADLINE_SECONDS = 300.0


class RampRates(NamedTuple):
    """What `--ramp` says."""

    first: float
    last: float
    step: float


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """When sessions begin, and when no more do."""
    group = parser.add_argument_group(
        "arrivals",
        f"Without any, a workload with times of its own keeps to them, and {_DEFAULT_CONCURRENCY} sessions"
        " of any other are live at a time.",
    )
    pace = group.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=rate, metavar="R", help="so many sessions begin a second, come what may")
    pace.add_argument("--concurrency", type=concurrency, metavar="N", help="so many are live at a time")
    pace.add_argument(
        "--ramp",
        type=ramp_rates,
        metavar="A:B:STEP",
        help="the rate grows from A to B by STEP until the server no longer keeps up",
    )
    shape = group.add_mutually_exclusive_group()
    shape.add_argument("--poisson", action="store_true", help="with --rate: at random, independent moments")
    shape.add_argument("--burst", type=common.positive_int, metavar="N", help="with --rate: N at a time")
    group.add_argument(
        "--step-seconds",
        type=positive,
        metavar="S",
        help="with --ramp: how long each rate lasts (default: 10)",
    )
    group.add_argument("--duration", type=positive, metavar="S", help="send for so many seconds")
    group.add_argument(
        "--requests", type=common.positive_int, metavar="N", help="send at most so many requests"
    )
    group.add_argument(
        "--seed",
        type=common.non_negative_int,
        metavar="N",
        help="repeats prompts and moments of an earlier run; what is cached of them is found (default: new)",
    )


def arrivals_from(
    arguments: argparse.Namespace,
    workload: Workload,
    *,
    seed: int,
    keeps: Callable[[RequestResult], bool],
) -> Arrivals:
    """What `add_arrivals` read; `keeps` says what a ramp counts."""
    if arguments.ramp is not None:
        first, last, step = arguments.ramp
        seconds = {} if arguments.step_seconds is None else {"step_seconds": arguments.step_seconds}
        return Ramp(first_rate=first, last_rate=last, rate_step=step, keeps=keeps, **seconds)
    if arguments.rate is not None:
        if arguments.poisson:
            return Poisson(rate=arguments.rate, seed=seed)
        if arguments.burst is not None:
            return Bursts(rate=arguments.rate, burst=arguments.burst)
        return ConstantRate(rate=arguments.rate)
    if arguments.concurrency is None:
        first_session = next(workload.sessions(), None)
        if first_session is not None and first_session.seconds is not None:
            return Planned()
    return ClosedLoop(concurrency=arguments.concurrency or _DEFAULT_CONCURRENCY)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Whom to send to, and as whom."""
    parser.add_argument(
        "--target",
        type=target_address,
        default=os.environ.get("PREFIXCACHE_ADDRESS", DEFAULT_ADDRESS),
        metavar="TARGET",
        help="grpc://HOST:PORT or HOST:PORT, a worker of ours; http://HOST:PORT or https://, any"
        f" OpenAI-compatible server (default: PREFIXCACHE_ADDRESS, else {DEFAULT_ADDRESS})",
    )
    parser.add_argument("--model", metavar="NAME", help="of an http target that has several")
    common.add_api_key(parser)
    parser.add_argument("--key-file", metavar="FILE", help="the keys of several tenants: lines of TENANT KEY")
    parser.add_argument(
        "--deadline",
        type=common.deadline,
        default=_DEFAULT_DEADLINE_SECONDS,
        metavar="SECONDS",
        help="a request without an answer after this time has failed (default: %(default)g)",
    )
    common.add_tls(parser)


def target_from(arguments: argparse.Namespace) -> Target:
    """What `add_target` read. Requires: a running event loop. Raises OSError, PrefixCacheClientError."""
    address: str = arguments.target
    tls = common.tls(arguments)
    keys = TenantKeys(api_key=arguments.api_key)
    if arguments.key_file is not None:
        keys = read_tenant_keys(arguments.key_file, api_key=arguments.api_key)
    if not is_http(address):
        return GrpcTarget(address, keys=keys, tls=tls, deadline=arguments.deadline)
    from prefixcache_client.load.openai_target import OpenAITarget  # loads aiohttp, which takes its time

    return OpenAITarget(address, model=arguments.model, keys=keys, tls=tls, deadline=arguments.deadline)


def check_load_flags(arguments: argparse.Namespace) -> None:
    """End the program when flags of `add_arrivals` or `add_target` do not go together."""
    if (arguments.poisson or arguments.burst is not None) and arguments.rate is None:
        arguments.error("--poisson and --burst are shapes of --rate: give it too")
    if arguments.step_seconds is not None and arguments.ramp is None:
        arguments.error("--step-seconds is of --ramp: give it too")
    if arguments.model is not None and not is_http(arguments.target):
        arguments.error("--model is for an http target: a worker of ours has one model")
    if common.tls(arguments) is not None and arguments.target.startswith("http://"):
        arguments.error("--tls is for a target that begins with https://, or is no http target")


def is_http(address: str) -> bool:
    """Whether a checked target is one for HTTP."""
    return "://" in address


def target_address(value: str) -> str:
    """HOST:PORT for gRPC, or an http URL."""
    try:
        if value.startswith(("http://", "https://")):
            return checked_url(value)
        return checked_address(value.removeprefix("grpc://"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(value: str) -> float:
    """A number above 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {value!r}")
    return number


def rate(value: str) -> float:
    """A number of sessions a second that can be planned."""
    number = positive(value)
    if number > MAX_RATE:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_RATE:,} a second, got {value!r}")
    return number


def concurrency(value: str) -> int:
    """A number of sessions that this program can have in flight."""
    number = common.positive_int(value)
    if number > MAX_IN_FLIGHT:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_IN_FLIGHT:,}, got {value}")
    return number


def ramp_rates(value: str) -> RampRates:
    """Three numbers with colons between."""
    parts = value.split(":")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"must be A:B:STEP, such as 10:100:10, got {value!r}")
    rates = RampRates(rate(parts[0]), rate(parts[1]), positive(parts[2]))
    if rates.first > rates.last:
        raise argparse.ArgumentTypeError(f"must begin with the smaller rate, got {value!r}")
    try:
        Ramp(first_rate=rates.first, last_rate=rates.last, rate_step=rates.step)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return rates
