"""The figures of a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.measurements import answered, any_measurements, failed, measurement, server_stats

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.report.distribution import distribution
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import Summary, summarize
from prefixcache_client.load.report.tables import whole_tables

NO_LIMITS = Slo()
STRICT = Slo(first_token_seconds=0.4, seconds_per_token=0.1, total_seconds=2.0)


def exact_percentile(values: list[float], percent: int) -> Fraction:
    """By the definition, without rounding."""
    ordered = sorted(map(Fraction, values))
    place = Fraction(percent, 100) * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_percentile_is_interpolated_as_numpy_does_by_default(values: list[float]) -> None:
    figures = distribution(values)

    assert figures is not None
    assert (figures.count, figures.max) == (len(values), max(values))
    assert figures.mean == pytest.approx(sum(values) / len(values))
    for percent, figure in ((50, figures.p50), (90, figures.p90), (99, figures.p99)):
        assert figure == pytest.approx(float(exact_percentile(values, percent)), abs=1e-9)
        assert figure == pytest.approx(np.percentile(values, percent), abs=1e-9)


def test_latencies_are_those_of_answers_counted_from_the_planned_moment() -> None:
    summary = summarize(
        measurement(
            [
                answered(planned=0.0, late=0.2, first_token_seconds=0.3, gaps=(0.1, 0.3)),
                answered(planned=1.0, first_token_seconds=0.5, output_tokens=1),
                failed("UNAVAILABLE", planned=1.5, seconds=30.0),
            ]
        ),
        NO_LIMITS,
    )

    latencies = summary.latencies
    assert latencies.first_token is not None
    assert latencies.per_token is not None
    assert latencies.token_gap is not None
    assert latencies.total is not None
    assert latencies.first_token.mean == pytest.approx(0.4)
    assert (latencies.per_token.count, latencies.per_token.mean) == (1, pytest.approx(0.2))
    assert (latencies.token_gap.count, latencies.token_gap.max) == (2, 0.3)
    assert latencies.total.max == pytest.approx(0.7)


def test_throughput_counts_answers_over_the_whole_time() -> None:
    summary = summarize(
        measurement(
            [answered(gaps=(0.1,), prompt_tokens=10), answered(prompt_tokens=30), failed("429")], seconds=4.0
        ),
        NO_LIMITS,
    )

    assert summary.throughput is not None
    assert asdict(summary.throughput) == {
        "requests_per_second": 0.5,
        "output_tokens_per_second": 0.75,
        "prompt_tokens_per_second": 10.0,
    }
    assert (summary.num_requests, summary.num_answered, summary.failures) == (3, 2, {"429": 1})


def test_prompt_tokens_that_no_server_told_are_no_figure() -> None:
    """Text to a server without usage: nobody knows its tokens, and 0 would be a wrong answer."""
    untold = summarize(measurement([answered(prompt_tokens=None)], seconds=2.0), NO_LIMITS)
    partly = summarize(
        measurement([answered(prompt_tokens=None), answered(prompt_tokens=30)], seconds=2.0), NO_LIMITS
    )

    assert untold.throughput is not None
    assert (untold.tokens.prompt, untold.throughput.prompt_tokens_per_second) == (None, None)
    assert partly.throughput is not None
    assert (partly.tokens.prompt, partly.throughput.prompt_tokens_per_second) == (30, 15.0)


def test_failures_are_counted_by_code_the_most_frequent_first() -> None:
    summary = summarize(measurement([failed("A"), failed("B"), failed("B")]), NO_LIMITS)

    assert list(summary.failures.items()) == [("B", 2), ("A", 1)]


@pytest.mark.parametrize(
    ("results", "cached", "share"),
    [
        ([answered(cached_tokens=None)], None, None),
        ([answered(cached_tokens=0)], 0, 0.0),
        ([answered(cached_tokens=75), answered(cached_tokens=None)], 75, 0.75),
        ([answered(cached_tokens=90), answered(prompt_tokens=300, cached_tokens=10)], 100, 0.25),
    ],
)
def test_the_cached_share_is_of_the_tokens_that_the_server_speaks_of(
    results: list[Any], cached: int | None, share: float | None
) -> None:
    tokens = summarize(measurement(results), NO_LIMITS).tokens

    assert (tokens.cached, tokens.cached_share) == (cached, share)


def test_a_good_answer_keeps_every_limit() -> None:
    good = answered(first_token_seconds=0.4, gaps=(0.1, 0.1))
    slow_to_begin = answered(first_token_seconds=0.41)
    slow_tokens = answered(first_token_seconds=0.1, gaps=(0.1, 0.2))
    slow_to_end = answered(first_token_seconds=0.4, gaps=(0.1,) * 17)
    results = [good, slow_to_begin, slow_tokens, slow_to_end, failed("429")]

    assert [STRICT.is_kept(result) for result in results] == [True, False, False, False, False]
    goodput = summarize(measurement(results, seconds=4.0), STRICT).goodput
    assert goodput is not None
    assert asdict(goodput) == {"num_requests": 1, "share": 0.2, "requests_per_second": 0.25}


def test_an_answer_without_a_token_is_held_to_the_first_tokens_limit_by_its_end() -> None:
    empty = replace(answered(first_token_seconds=None, output_tokens=0), ended=1.0)

    assert Slo(first_token_seconds=1.0).is_kept(empty)
    assert not Slo(first_token_seconds=0.99).is_kept(empty)


def test_without_limits_there_is_no_goodput() -> None:
    assert summarize(measurement([answered()]), NO_LIMITS).goodput is None


def test_late_requests_are_counted_and_told() -> None:
    results = [answered(planned=i, late=late) for i, late in enumerate((0.0, 0.009, 0.011, 0.5))]

    summary = summarize(measurement(results), NO_LIMITS)

    assert summary.sending.num_late == 2
    assert summary.sending.late is not None
    assert summary.sending.late.max == pytest.approx(0.5)
    assert summary.notes == (
        "2 of 4 requests were sent more than 10 ms late; the latencies include the delay.",
    )


def test_the_rate_planned_and_the_rate_held() -> None:
    results = [answered(planned=i / 10, late=i / 10) for i in range(11)]

    sending = summarize(measurement(results), NO_LIMITS).sending

    assert sending.planned_per_second == pytest.approx(10.0)
    assert sending.sent_per_second == pytest.approx(5.0)


def test_tenants_and_turns_are_told_apart() -> None:
    summary = summarize(
        measurement(
            [
                answered(tenant="b", first_token_seconds=0.1),
                answered(tenant="a", first_token_seconds=0.2),
                answered(tenant="a", turn=1, first_token_seconds=0.4),
                answered(tenant="a", turn=10),
                failed("429"),
            ]
        ),
        STRICT,
    )

    assert [(part.name, part.num_requests, part.num_answered) for part in summary.tenants] == [
        ("a", 3, 3),
        ("", 1, 0),
        ("b", 1, 1),
    ]
    assert [part.name for part in summary.turns] == ["1", "2", "11"]
    assert summary.turns[1].latencies.first_token == distribution([0.4])
    assert summary.turns[1].goodput is not None
    assert summary.turns[1].goodput.share == 1.0


@pytest.mark.parametrize(("failed_there", "remark"), [(0, ""), (1, "of requests that failed too")])
def test_the_servers_table_names_blocks_that_went_and_speaks_of_failures_where_there_are(
    failed_there: int, remark: str
) -> None:
    """A superseded block was not evicted: the causes stand beside the count, not below it."""
    after = server_stats(finished=1, failed=failed_there, evicted={"superseded": 6})
    summary = summarize(measurement([answered()], stats_before=server_stats(), stats_after=after), NO_LIMITS)

    (table,) = (table for table in whole_tables(summary) if table.title == "Client and server")
    assert ("blocks gone: superseded", "", "6") in table.rows
    assert remark in table.remark
    assert bool(table.remark) == bool(failed_there)


def test_the_servers_counts_are_the_difference_of_two_readings() -> None:
    before = server_stats(
        finished=5,
        prompt=1000,
        cached=400,
        kv_rows_read=100,
        kv_rows_unshared=500,
        steps=7,
        evicted={"room": 3, "expired": 1},
        observed={"queue": 5},
    )
    after = server_stats(
        finished=7,
        prompt=1300,
        cached=600,
        kv_rows_read=200,
        kv_rows_unshared=900,
        steps=17,
        evicted={"room": 8, "expired": 1, "reset": 2},
        observed={"queue": 7, "request": 2},
    )

    server = summarize(
        measurement([answered(), answered()], stats_before=before, stats_after=after), NO_LIMITS
    ).server

    assert server is not None
    assert (server.finished_requests, server.steps) == (2, 10)
    assert (server.prompt_tokens, server.cached_tokens, server.computed_tokens) == (300, 200, 100)
    assert (server.kv_rows_read, server.kv_rows_saved) == (100, 300)
    assert server.cached_share == pytest.approx(2 / 3)
    assert {eviction.cause: eviction.num_blocks for eviction in server.evictions} == {"room": 5, "reset": 2}
    assert server.evicted_blocks == 7
    assert {latency.name: latency.count for latency in server.latencies} == {"queue": 2, "request": 2}


def test_a_server_that_was_started_anew_is_not_believed() -> None:
    summary = summarize(
        measurement(
            [answered()], stats_before=server_stats(prompt=1000), stats_after=server_stats(prompt=200)
        ),
        NO_LIMITS,
    )

    assert summary.server is None
    assert summary.notes == ("The server was started anew during the load: what it counted is left out.",)


def test_that_others_used_the_server_is_told() -> None:
    summary = summarize(
        measurement(
            [answered()], stats_before=server_stats(finished=1), stats_after=server_stats(finished=4)
        ),
        NO_LIMITS,
    )

    assert summary.notes == (
        "The server finished 3 requests meanwhile, 1 of them for this load: its figures are those of all.",
    )


def test_an_interrupted_measurement_says_how_far_it_came() -> None:
    interrupted = measurement([answered()], num_planned=1000, was_interrupted=True)

    assert summarize(interrupted, NO_LIMITS).notes == ("Broken off: 1 of 1,000 requests were sent.",)


def test_without_an_answer_nothing_is_made_up() -> None:
    summary = summarize(measurement([failed("UNAVAILABLE")]), STRICT)

    assert set(asdict(summary.latencies).values()) == {None}
    assert summary.throughput is None
    assert (summary.tokens.cached, summary.tokens.cached_share) == (None, None)
    assert summary.goodput is not None
    assert summary.goodput.share == 0.0
    assert summary.notes == ("No request was answered: there are no latencies and no throughput.",)


def test_without_a_request_there_is_nothing() -> None:
    summary = summarize(measurement([]), STRICT)

    assert (summary.num_requests, summary.goodput, summary.throughput, summary.tenants) == (0, None, None, ())
    assert (summary.sending.planned_per_second, summary.sending.late) == (None, None)


@given(any_measurements())
def test_every_figure_is_a_number_and_the_parts_make_up_the_whole(any_one: Measurement) -> None:
    summary = summarize(any_one, STRICT)

    assert all(math.isfinite(figure) for figure in figures_of(asdict(summary)))
    for parts in (summary.tenants, summary.turns):
        assert sum(part.num_requests for part in parts) == summary.num_requests
        assert sum(part.num_answered for part in parts) == summary.num_answered
        assert sum(part.tokens.prompt for part in parts) == summary.tokens.prompt
    assert summary.num_answered + sum(summary.failures.values()) == summary.num_requests
    assert ordered(summary)


def ordered(summary: Summary) -> bool:
    known = [each for each in asdict(summary.latencies).values() if each is not None]
    return all(each["p50"] <= each["p90"] <= each["p99"] <= each["max"] for each in known)


def figures_of(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from figures_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from figures_of(inner)
    elif isinstance(value, int | float):
        yield value
