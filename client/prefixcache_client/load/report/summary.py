"""A measurement in figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from prefixcache_client.load.measurement import Measurement, RequestResult
from prefixcache_client.load.ramp import Ramp, RampOutcome
from prefixcache_client.load.report.distribution import Distribution, distribution
from prefixcache_client.load.report.server_side import ServerFigures, server_figures
from prefixcache_client.load.report.slo import Slo

LATE_TOLERANCE_SECONDS = 0.01
"""A request that is sent this much after its time is not late yet: a timer is not more exact under load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """In seconds, of the answered requests. None: there was nothing to measure it on."""

    first_token: Distribution | None
    """From the planned moment to the first token."""
    per_token: Distribution | None
    """After the first token: one mean for each request that has at least two tokens."""
    token_gap: Distribution | None
    """From one message with tokens to the next one, all gaps of all requests together."""
    total: Distribution | None
    """From the planned moment to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Of the answered requests."""

    prompt: int | None
    """None: there are answers, and the server said so of none."""
    output: int
    cached: int | None
    """None: the server said so of none."""
    cached_share: float | None
    """`cached` over the prompt tokens of the requests that the server said so of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Of the answered requests, over the whole measurement."""

    requests_per_second: float
    output_tokens_per_second: float
    prompt_tokens_per_second: float | None
    """None: the server did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that were answered within every limit."""

    num_requests: int
    share: float
    """Of all requests, the failed ones too."""
    requests_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How the load kept to its plan."""

    planned_per_second: float | None
    """Between the first and the last planned moment; None: they are the same, or there are none."""
    sent_per_second: float | None
    """Between the first and the last request sent."""
    late: Distribution | None
    """Seconds that a request was sent after its time."""
    num_late: int
    """Of them, more than `late_tolerance_seconds`."""
    late_tolerance_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The requests of one tenant, or the same turn of all sessions."""

    name: str
    """Of the tenant, empty for those without one; or the turn, which counts from 1."""
    num_requests: int
    num_answered: int
    latencies: Latencies
    tokens: Tokens
    goodput: Goodput | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A measurement in figures. What cannot be told is None, never 0."""

    seconds: float
    num_requests: int
    num_answered: int
    failures: dict[str, int]
    """Requests without an answer by the code of their status, the most frequent first."""
    latencies: Latencies
    tokens: Tokens
    throughput: Throughput | None
    """None: there was no answer."""
    slo: Slo
    goodput: Goodput | None
    """None: there were no limits, or no requests."""
    sending: Sending
    ramp: RampOutcome | None
    """None: the rate did not grow."""
    tenants: tuple[Part, ...]
    """Those with the most requests first."""
    turns: tuple[Part, ...]
    """The first turn first."""
    server: ServerFigures | None
    """None: the server does not say, or was started anew meanwhile."""
    notes: tuple[str, ...]
    """What a reader has to know before relying on the figures, a sentence each."""


def summarize(
    measurement: Measurement,
    slo: Slo,
    *,
    ramp: Ramp | None = None,
    late_tolerance_seconds: float = LATE_TOLERANCE_SECONDS,
) -> Summary:
    """The figures of a measurement, judged by these limits. O(n log n) in the tokens received.

    `ramp` is how the load was sent, if that was a ramp.
    """
    results, seconds = measurement.results, measurement.seconds
    answered = [result for result in results if result.error is None]
    failures = Counter(result.error for result in results if result.error is not None)
    tokens = _tokens(answered)
    sending = _sending(results, late_tolerance_seconds)
    server = (
        server_figures(measurement.stats_before, measurement.stats_after)
        if measurement.stats_before is not None and measurement.stats_after is not None
        else None
    )
    return Summary(
        seconds=seconds,
        num_requests=len(results),
        num_answered=len(answered),
        failures=dict(failures.most_common()),
        latencies=_latencies(answered),
        tokens=tokens,
        throughput=Throughput(
            requests_per_second=len(answered) / seconds,
            output_tokens_per_second=tokens.output / seconds,
            prompt_tokens_per_second=None if tokens.prompt is None else tokens.prompt / seconds,
        )
        if answered and seconds
        else None,
        slo=slo,
        goodput=_goodput(results, slo, seconds),
        sending=sending,
        ramp=None if ramp is None else ramp.outcome(results),
        tenants=tuple(
            sorted(
                _parts(results, lambda result: result.tenant or "", slo, seconds),
                key=lambda part: (-part.num_requests, part.name),
            )
        ),
        turns=tuple(
            sorted(
                _parts(results, lambda result: result.turn + 1, slo, seconds),
                key=lambda part: int(part.name),
            )
        ),
        server=server,
        notes=tuple(_notes(measurement, len(answered), sending, server)),
    )


def _latencies(answered: Sequence[RequestResult]) -> Latencies:
    return Latencies(
        first_token=distribution(_known(result.first_token_seconds for result in answered)),
        per_token=distribution(_known(result.seconds_per_token for result in answered)),
        token_gap=distribution(gap for result in answered for gap in result.token_gaps),
        total=distribution(result.total_seconds for result in answered),
    )


def _tokens(answered: Sequence[RequestResult]) -> Tokens:
    known = [result for result in answered if result.cached_tokens is not None]
    cached = sum(result.cached_tokens or 0 for result in known)
    of_prompt = sum(result.prompt_tokens or 0 for result in known)
    told = [result.prompt_tokens for result in answered if result.prompt_tokens is not None]
    return Tokens(
        prompt=sum(told) if told or not answered else None,
        output=sum(result.output_tokens for result in answered),
        cached=cached if known else None,
        cached_share=cached / of_prompt if of_prompt else None,
    )


def _goodput(results: Sequence[RequestResult], slo: Slo, seconds: float) -> Goodput | None:
    if not slo.has_limits or not results:
        return None
    num_requests = sum(map(slo.is_kept, results))
    return Goodput(
        num_requests=num_requests,
        share=num_requests / len(results),
        requests_per_second=num_requests / seconds if seconds else None,
    )


def _sending(results: Sequence[RequestResult], late_tolerance_seconds: float) -> Sending:
    late = [result.late_seconds for result in results]
    return Sending(
        planned_per_second=_pace([result.planned for result in results]),
        sent_per_second=_pace([result.sent for result in results]),
        late=distribution(late),
        num_late=sum(late_seconds > late_tolerance_seconds for late_seconds in late),
        late_tolerance_seconds=late_tolerance_seconds,
    )


def _parts(
    results: Sequence[RequestResult], key: Callable[[RequestResult], Hashable], slo: Slo, seconds: float
) -> Iterable[Part]:
    by_key: dict[Hashable, list[RequestResult]] = defaultdict(list)
    for result in results:
        by_key[key(result)].append(result)
    for name, part in by_key.items():
        answered = [result for result in part if result.error is None]
        yield Part(
            name=str(name),
            num_requests=len(part),
            num_answered=len(answered),
            latencies=_latencies(answered),
            tokens=_tokens(answered),
            goodput=_goodput(part, slo, seconds),
        )


def _notes(
    measurement: Measurement, num_answered: int, sending: Sending, server: ServerFigures | None
) -> Iterable[str]:
    num_requests = len(measurement.results)
    if measurement.was_interrupted:
        of_planned = "" if measurement.num_planned is None else f" of {measurement.num_planned:,}"
        yield f"Broken off: {num_requests:,}{of_planned} requests were sent."
    if num_requests and not num_answered:
        yield "No request was answered: there are no latencies and no throughput."
    if sending.num_late:
        yield (
            f"{sending.num_late:,} of {num_requests:,} requests were sent more than"
            f" {1000 * sending.late_tolerance_seconds:g} ms late; the latencies include the delay."
        )
    if server is None and measurement.stats_before is not None and measurement.stats_after is not None:
        yield "The server was started anew during the load: what it counted is left out."
    if server is not None and server.finished_requests > num_answered:
        yield (
            f"The server finished {server.finished_requests:,} requests meanwhile, {num_answered:,} of them"
            " for this load: its figures are those of all."
        )


def _known(values: Iterable[float | None]) -> Iterable[float]:
    return (value for value in values if value is not None)


def _pace(moments: Sequence[float]) -> float | None:
    """How many came in a second: n moments have n - 1 intervals."""
    if not moments or max(moments) == min(moments):
        return None
    return (len(moments) - 1) / (max(moments) - min(moments))
