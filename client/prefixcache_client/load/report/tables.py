"""A summary as tables of text, for whatever shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.ramp import RampOutcome
from prefixcache_client.load.report.distribution import Distribution
from prefixcache_client.load.report.server_side import ServerFigures
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import Latencies, Part, Sending, Summary
from prefixcache_client.load.report.units import NONE, number, seconds, share, short_seconds

MOST_PARTS = 20
"""Tenants or turns that get a row."""

UNTOLD = "the server does not say"
"""What stands beside a dash."""

NO_NAME = "(none)"
"""How a tenant without a name is called."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Cells are short texts; the first of a row says what the others are of."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remark: str = ""


def whole_tables(summary: Summary) -> tuple[ReportTable, ...]:
    """Of all requests together: those that have something to say, the most important first."""
    tables = [
        ReportTable(
            "Latency",
            ("answered requests", "mean", "p50", "p90", "p99", "max", "count"),
            tuple(_latency_rows(summary.latencies)),
        ),
        ReportTable("Load", ("", "", ""), tuple(_load_rows(summary))),
        ReportTable(
            "Failures",
            ("code", "requests", "of all"),
            tuple(
                (code, number(count), share(count / summary.num_requests))
                for code, count in summary.failures.items()
            ),
        ),
    ]
    if summary.ramp is not None and summary.ramp.steps:
        tables.append(_ramp_table(summary.ramp))
    if summary.server is not None:
        tables += [_server_table(summary, summary.server), _server_latency_table(summary.server)]
    return tuple(table for table in tables if table.rows)


def _ramp_table(ramp: RampOutcome) -> ReportTable:
    """A row for each rate, and below them the knee."""
    if ramp.knee is None:
        remark = f"the server does not keep up with {ramp.steps[0].rate:g} a second: begin with less"
    elif ramp.has_reached_knee:
        remark = f"the knee: the server kept up with {ramp.knee:g} a second, and not with the next rate"
    else:
        remark = f"the server kept up with every rate up to {ramp.knee:g} a second"
    return ReportTable(
        "Ramp",
        ("rate", "offered", "kept", "share"),
        tuple(
            (
                f"{step.rate:g} /s",
                number(step.num_offered),
                number(step.num_kept),
                share(step.num_kept / step.num_offered if step.num_offered else None),
            )
            for step in ramp.steps
        ),
        remark,
    )


def part_tables(summary: Summary) -> tuple[ReportTable, ...]:
    """By tenant and by turn, where there are several."""
    parts = (("tenant", summary.tenants), ("turn", summary.turns))
    return tuple(part_table(what, of_it) for what, of_it in parts if len(of_it) > 1)


def part_table(what: str, parts: Sequence[Part]) -> ReportTable:
    """A row for each of the first `MOST_PARTS`; `what` is what tells them apart."""
    has_goodput = any(part.goodput is not None for part in parts)
    left_out = parts[MOST_PARTS:]
    return ReportTable(
        f"By {what}",
        (
            what,
            "sent",
            "failed",
            "first p50",
            "first p99",
            "token p50",
            "total p50",
            "total p99",
            "cached",
            *(("good",) if has_goodput else ()),
        ),
        tuple(
            (
                part.name or NO_NAME,
                number(part.num_requests),
                number(part.num_requests - part.num_answered),
                _p50(part.latencies.first_token),
                _p99(part.latencies.first_token),
                _p50(part.latencies.per_token),
                _p50(part.latencies.total),
                _p99(part.latencies.total),
                share(part.tokens.cached_share),
                *((share(part.goodput.share if part.goodput else None),) if has_goodput else ()),
            )
            for part in parts[:MOST_PARTS]
        ),
        f"and {len(left_out):,} more with {sum(part.num_requests for part in left_out):,} requests"
        if left_out
        else "",
    )


def settings_table(measurement: Measurement) -> ReportTable:
    """What was measured: workload, arrivals and target, setting by setting."""
    return ReportTable(
        "Settings",
        ("of", "setting", "value"),
        tuple(
            (of, name, str(value))
            for of, settings in (
                ("workload", measurement.workload),
                ("arrivals", measurement.arrivals),
                ("target", measurement.target),
            )
            for name, value in settings.items()
        ),
    )


def is_text(table: ReportTable, column: int) -> bool:
    """Whether a column has words, not numbers."""
    return column == 0 or any(row[column][:1].isalpha() for row in table.rows)


def limits(slo: Slo) -> str:
    """The limits in words."""
    return ", ".join(
        f"{what} within {seconds(limit)}"
        for what, limit in (
            ("first token", slo.first_token_seconds),
            ("each further one on average", slo.seconds_per_token),
            ("whole answer", slo.total_seconds),
        )
        if limit is not None
    )


def _latency_rows(latencies: Latencies) -> Iterator[tuple[str, ...]]:
    for name, values in (
        ("first token", latencies.first_token),
        ("time per token", latencies.per_token),
        ("between messages", latencies.token_gap),
        ("end to end", latencies.total),
    ):
        if values is not None:
            yield (
                name,
                *map(seconds, (values.mean, values.p50, values.p90, values.p99, values.max)),
                number(values.count),
            )


def _load_rows(summary: Summary) -> Iterator[tuple[str, str, str]]:
    throughput, tokens, goodput = summary.throughput, summary.tokens, summary.goodput
    yield "requests", number(summary.num_requests), f"{number(summary.num_answered)} answered"
    yield "took", seconds(summary.seconds), ""
    if throughput is not None:
        yield "answered", f"{number(throughput.requests_per_second)} /s", ""
        yield (
            "output tokens",
            f"{number(throughput.output_tokens_per_second)} /s",
            f"{number(tokens.output)} in all",
        )
        yield (
            "prompt tokens",
            NONE if tokens.prompt is None else f"{number(throughput.prompt_tokens_per_second)} /s",
            UNTOLD if tokens.prompt is None else f"{number(tokens.prompt)} in all",
        )
        yield (
            "cached",
            share(tokens.cached_share),
            UNTOLD if tokens.cached is None else f"{number(tokens.cached)} prompt tokens",
        )
    if goodput is not None:
        yield "good answers", share(goodput.share), limits(summary.slo)
        if goodput.requests_per_second is not None:
            yield "goodput", f"{number(goodput.requests_per_second)} /s", ""
    yield from _sending_rows(summary.sending)


def _sending_rows(sending: Sending) -> Iterator[tuple[str, str, str]]:
    if sending.planned_per_second is not None:
        held = "" if sending.sent_per_second is None else f"{number(sending.sent_per_second)} /s were sent"
        yield "planned", f"{number(sending.planned_per_second)} /s", held
    if sending.late is not None:
        yield (
            "sent late",
            number(sending.num_late),
            f"by more than {short_seconds(sending.late_tolerance_seconds)};"
            f" p99 {seconds(sending.late.p99)}, at most {seconds(sending.late.max)}",
        )


def _server_table(summary: Summary, server: ServerFigures) -> ReportTable:
    tokens = summary.tokens
    beside = (
        ("requests answered", number(summary.num_answered), number(server.finished_requests)),
        ("prompt tokens", number(tokens.prompt), number(server.prompt_tokens)),
        ("cached of them", number(tokens.cached), number(server.cached_tokens)),
        ("cached share", share(tokens.cached_share), share(server.cached_share)),
        ("output tokens", number(tokens.output), number(server.generated_tokens)),
    )
    alone = (
        ("computed prompt tokens", server.computed_tokens),
        ("KV rows read", server.kv_rows_read),
        ("KV rows saved by sharing", server.kv_rows_saved),
        ("steps", server.steps),
        ("preemptions", server.preemptions),
        ("waits for the same prompt", server.followed),
        ("blocks copied on write", server.copied_blocks),
        ("blocks evicted", server.evicted_blocks),
        *((f"blocks gone: {eviction.cause}", eviction.num_blocks) for eviction in server.evictions),
    )
    return ReportTable(
        "Client and server",
        ("", "client", "server"),
        (*beside, *((name, "", number(count)) for name, count in alone)),
        "the server counts the tokens of requests that failed too" if server.unfinished_requests else "",
    )


def _server_latency_table(server: ServerFigures) -> ReportTable:
    return ReportTable(
        "Latency by the server's clock",
        ("its last observations", "p50", "p90", "p99", "count"),
        tuple(
            (
                latency.name.replace("_", " "),
                *map(seconds, (latency.p50_seconds, latency.p90_seconds, latency.p99_seconds)),
                number(latency.count),
            )
            for latency in server.latencies
        ),
        "the count is of this load; the percentiles may hold older observations",
    )


def _p50(values: Distribution | None) -> str:
    return NONE if values is None else seconds(values.p50)


def _p99(values: Distribution | None) -> str:
    return NONE if values is None else seconds(values.p99)
