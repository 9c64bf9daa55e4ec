"""Measurements made up for tests: of given values, or any at all."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from prefixcache_client.cache_answers import (
    BlockStats,
    EvictionStats,
    LatencyStats,
    RequestStats,
    Stats,
    TierStats,
    TokenStats,
)
from prefixcache_client.load.measurement import Measurement, RequestResult


def answered(
    *,
    session: int = 0,
    turn: int = 0,
    tenant: str | None = None,
    planned: float = 0.0,
    late: float = 0.0,
    first_token_seconds: float | None = 0.5,
    gaps: Sequence[float] = (),
    prompt_tokens: int | None = 100,
    cached_tokens: int | None = None,
    output_tokens: int | None = None,
) -> RequestResult:
    """An answer; it ends with its last token, and each message has one."""
    first_token = None if first_token_seconds is None else planned + first_token_seconds
    return RequestResult(
        session=session,
        turn=turn,
        tenant=tenant,
        planned=planned,
        sent=planned + late,
        first_token=first_token,
        ended=planned + (first_token_seconds or 0.0) + sum(gaps),
        token_gaps=tuple(gaps),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=len(gaps) + 1 if output_tokens is None else output_tokens,
        error=None,
    )


def failed(
    code: str, *, session: int = 0, planned: float = 0.0, tenant: str | None = None, seconds: float = 0.25
) -> RequestResult:
    """A request without an answer."""
    return RequestResult(
        session=session,
        turn=0,
        tenant=tenant,
        planned=planned,
        sent=planned,
        first_token=None,
        ended=planned + seconds,
        token_gaps=(),
        prompt_tokens=0,
        cached_tokens=None,
        output_tokens=0,
        error=code,
    )


def measurement(
    results: Sequence[RequestResult],
    *,
    seconds: float | None = None,
    workload: dict[str, str | int | float] | None = None,
    arrivals: dict[str, str | int | float] | None = None,
    target: dict[str, str | int | float] | None = None,
    num_planned: int | None = None,
    was_interrupted: bool = False,
    stats_before: Stats | None = None,
    stats_after: Stats | None = None,
) -> Measurement:
    """These results. By default it ended with the last of them."""
    return Measurement(
        workload={"kind": "chat", "seed": 1} if workload is None else workload,
        arrivals={"kind": "constant", "rate": 10.0} if arrivals is None else arrivals,
        target={"kind": "prefixcache", "address": "127.0.0.1:50051"} if target is None else target,
        began="2026-11-30T12:00:00+00:00",
        seconds=max((result.ended for result in results), default=0.0) if seconds is None else seconds,
        results=tuple(results),
        num_planned=len(results) if num_planned is None else num_planned,
        was_interrupted=was_interrupted,
        stats_before=stats_before,
        stats_after=stats_after,
    )


def server_stats(
    *,
    finished: int = 0,
    failed: int = 0,
    prompt: int = 0,
    cached: int = 0,
    kv_rows_read: int = 0,
    kv_rows_unshared: int = 0,
    steps: int = 0,
    evicted: dict[str, int] | None = None,
    observed: dict[str, int] | None = None,
) -> Stats:
    """What a server might say."""
    evicted = evicted or {}
    return Stats(
        blocks=BlockStats(
            total=100,
            free=90,
            idle=5,
            live=5,
            live_unshared=8,
            peak_live=9,
            peak_live_unshared=12,
            evicted=sum(evicted.values()),
            copied=0,
            block_bytes=1024,
            block_size=16,
            used_slots=70,
            peak_used_slots=80,
        ),
        tokens=TokenStats(
            prompt=prompt,
            cached=cached,
            computed=prompt - cached,
            generated=0,
            kv_rows_read=kv_rows_read,
            kv_rows_unshared=kv_rows_unshared,
            restored=0,
        ),
        requests=RequestStats(
            waiting=0,
            running=0,
            finished=finished,
            cancelled=0,
            preemptions=0,
            steps=steps,
            failed=failed,
            peak_running=2,
            promoted=0,
            followed=0,
            running_tokens=0,
            longest=0,
        ),
        tiers=(TierStats(name="memory", num_blocks=10, used_blocks=1, stored=1, restored=0, evicted=0),),
        latencies=tuple(
            LatencyStats(name=name, count=count, p50_seconds=0.1, p90_seconds=0.2, p99_seconds=0.3)
            for name, count in (observed or {}).items()
        ),
        evictions=tuple(EvictionStats(cause=cause, num_blocks=count) for cause, count in evicted.items()),
    )


_seconds = st.integers(0, 10**8).map(lambda microseconds: microseconds / 1e6)  # no clock tells less
_settings = st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers() | st.floats(-1e9, 1e9))


@st.composite
def any_results(draw: st.DrawFn) -> RequestResult:
    """Any result that a runner could report."""
    planned, late, waited = draw(_seconds), draw(_seconds), draw(_seconds)
    has_tokens = draw(st.booleans())
    gaps = tuple(draw(st.lists(_seconds, max_size=4))) if has_tokens else ()
    error = draw(st.none() | st.sampled_from(("RESOURCE_EXHAUSTED", "429")))
    prompt_tokens = draw(st.integers(0, 1000))
    return RequestResult(
        session=draw(st.integers(0, 5)),
        turn=draw(st.integers(0, 3)),
        tenant=draw(st.none() | st.text(max_size=5)),
        planned=planned,
        sent=planned + late,
        first_token=planned + late + waited if has_tokens else None,
        ended=planned + late + waited + sum(gaps),
        token_gaps=gaps,
        prompt_tokens=prompt_tokens,
        cached_tokens=draw(st.none() | st.integers(0, prompt_tokens)),
        output_tokens=draw(st.integers(len(gaps) + 1, 10)) if has_tokens else 0,
        error=error,
    )


@st.composite
def any_measurements(draw: st.DrawFn) -> Measurement:
    """Any measurement of a few requests."""
    results = draw(st.lists(any_results(), max_size=12))
    before = draw(st.none() | st.just(server_stats(evicted={"room": 1})))
    return Measurement(
        workload=draw(_settings),
        arrivals=draw(_settings),
        target=draw(_settings),
        began="2026-11-30T12:00:00+00:00",
        seconds=max((result.ended for result in results), default=0.0),
        results=tuple(results),
        num_planned=draw(st.none() | st.integers(0, 100)),
        was_interrupted=draw(st.booleans()),
        stats_before=before,
        stats_after=None
        if before is None
        else server_stats(finished=3, evicted={"room": 2}, observed={"queue": 3}),
    )
