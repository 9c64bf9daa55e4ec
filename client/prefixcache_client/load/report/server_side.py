"""What the server counted during a load."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from prefixcache_client.cache_answers import EvictionStats, LatencyStats, RequestStats, Stats, TokenStats


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """Counts from the reading before a load to the one after it, whoever caused them."""

    finished_requests: int
    unfinished_requests: int
    """Cancelled or failed."""
    prompt_tokens: int
    """cached + computed."""
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    kv_rows_read: int
    kv_rows_saved: int
    """Reads that sharing made unnecessary: a run shared by several sequences is read once a step for all."""
    steps: int
    preemptions: int
    followed: int
    """Times that a prompt waited for another one that began the same."""
    copied_blocks: int
    evicted_blocks: int
    evictions: tuple[EvictionStats, ...]
    """`evicted_blocks` by cause, where the server tells causes; without those of nothing."""
    latencies: tuple[LatencyStats, ...]
    """`count` is of this load; the percentiles are of the server's last observations, some maybe older."""

    @property
    def cached_share(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


def server_figures(before: Stats, after: Stats) -> ServerFigures | None:
    """The difference; None when a count went down, since the server was started anew in between."""
    if any(new < old for old, new in zip(_counts(before), _counts(after), strict=True)):
        return None
    kv_rows_read = after.tokens.kv_rows_read - before.tokens.kv_rows_read
    kv_rows_unshared = after.tokens.kv_rows_unshared - before.tokens.kv_rows_unshared
    evicted_before = {eviction.cause: eviction.num_blocks for eviction in before.evictions}
    observed_before = {latency.name: latency.count for latency in before.latencies}
    return ServerFigures(
        finished_requests=after.requests.finished - before.requests.finished,
        unfinished_requests=_unfinished(after.requests) - _unfinished(before.requests),
        prompt_tokens=after.tokens.prompt - before.tokens.prompt,
        cached_tokens=after.tokens.cached - before.tokens.cached,
        computed_tokens=after.tokens.computed - before.tokens.computed,
        generated_tokens=after.tokens.generated - before.tokens.generated,
        kv_rows_read=kv_rows_read,
        kv_rows_saved=kv_rows_unshared - kv_rows_read,
        steps=after.requests.steps - before.requests.steps,
        preemptions=after.requests.preemptions - before.requests.preemptions,
        followed=after.requests.followed - before.requests.followed,
        copied_blocks=after.blocks.copied - before.blocks.copied,
        evicted_blocks=after.blocks.evicted - before.blocks.evicted,
        evictions=tuple(
            EvictionStats(cause=eviction.cause, num_blocks=num_blocks)
            for eviction in after.evictions
            if (num_blocks := eviction.num_blocks - evicted_before.get(eviction.cause, 0))
        ),
        latencies=tuple(
            LatencyStats(
                name=latency.name,
                count=count,
                p50_seconds=latency.p50_seconds,
                p90_seconds=latency.p90_seconds,
                p99_seconds=latency.p99_seconds,
            )
            for latency in after.latencies
            if (count := latency.count - observed_before.get(latency.name, 0))
        ),
    )


def _unfinished(requests: RequestStats) -> int:
    return requests.cancelled + requests.failed


def _counts(stats: Stats) -> tuple[int, ...]:
    """Those that only a start takes back."""
    tokens: TokenStats = stats.tokens
    return (
        *astuple(tokens),
        stats.requests.finished,
        stats.requests.cancelled,
        stats.requests.failed,
        stats.requests.steps,
        stats.blocks.evicted,
        stats.blocks.copied,
    )
