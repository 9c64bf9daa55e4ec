"""A worker at one moment, drawn for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefixcache_client.answers import ModelInfo
from prefixcache_client.cache_answers import BlockStats, LatencyStats, Stats, Tree
from prefixcache_client.command_line.output import count, printable, seconds, share, size
from prefixcache_client.live_requests import LiveRequest, LiveRequests, RequestState
from prefixcache_client.prefix_answers import TenantUsage

_BAR_WIDTH = 60
_MAX_REQUESTS = 15
_MAX_PREFIXES = 8
_MAX_ID_LENGTH = 20
_MAX_PREVIEW_LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a worker has said at one moment."""

    seconds: float
    """By a clock that only goes on."""
    address: str
    model: ModelInfo
    stats: Stats | None
    usage: TenantUsage | None
    """Of the caller's tenant, where it is not told the figures of all."""
    live: LiveRequests
    tree: Tree


def draw_frame(now: Reading, before: Reading | None) -> RenderableType:
    """All that there is to see; rates are since the reading `before`."""
    head = Text()
    head.append("prefixcache ", style="bold")
    head.append(f"{now.address}  {printable(now.model.name)} on {printable(now.model.device)}", style="dim")
    parts: list[RenderableType] = [head, Text(), _totals(now, before), Text()]
    if now.stats is not None:
        parts += [_pool(now.stats.blocks), _evictions(now.stats, before), Text()]
    parts += [_requests(now.live), Text()]
    if now.stats is not None and now.stats.latencies:
        parts += [_latencies(now.stats.latencies), Text()]
    parts.append(_prefixes(now.tree))
    return Group(*parts)


def _totals(now: Reading, before: Reading | None) -> Table:
    prompt, cached, generated = _token_counts(now)
    table = Table.grid(padding=(0, 3))
    table.add_row("hit ratio", Text(share(cached, prompt), style="bold"), "since the start")
    if before is not None:
        prompt_before, cached_before, generated_before = _token_counts(before)
        recent = share(cached - cached_before, prompt - prompt_before)
        span = now.seconds - before.seconds
        table.add_row("", Text(recent, style="bold"), f"in the last {seconds(span)}")
        speed = (generated - generated_before) / span
        table.add_row("generated", Text(f"{speed:,.0f}", style="bold"), "tokens per second")
    table.add_row("", Text(f"{generated:,}", style="bold"), "tokens since the start")
    if now.stats is not None:
        tokens = now.stats.tokens
        reads = Text(share(tokens.kv_rows_read, tokens.kv_rows_unshared), style="bold")
        table.add_row("attention reads", reads, "of what it would read without sharing")
    elif now.usage is not None:
        held = Text(f"{now.usage.num_blocks:,}", style="bold")
        table.add_row("blocks", held, f"of tenant {printable(now.usage.tenant)}'s own")
    return table


def _token_counts(reading: Reading) -> tuple[int, int, int]:
    """Prompt, cached and generated tokens since the start."""
    if reading.stats is not None:
        tokens = reading.stats.tokens
        return tokens.prompt, tokens.cached, tokens.generated
    assert reading.usage is not None
    return reading.usage.prompt_tokens, reading.usage.cached_tokens, reading.usage.completion_tokens


def _pool(blocks: BlockStats) -> Group:
    num_live = round(_BAR_WIDTH * blocks.live / blocks.total)
    num_idle = round(_BAR_WIDTH * (blocks.live + blocks.idle) / blocks.total) - num_live
    bar = Text("pool  ")
    bar.append("█" * num_live, style="blue")
    bar.append("▒" * num_idle, style="cyan")
    bar.append("·" * (_BAR_WIDTH - num_live - num_idle), style="dim")
    words = Text(f"      {count(blocks.total, 'block')}: ")
    words.append(f"{blocks.live:,} held by requests", style="blue")
    words.append(f" ({size(blocks.live * blocks.block_bytes)}), ")
    words.append(f"{blocks.idle:,} cached", style="cyan")
    words.append(f", {blocks.free:,} empty")
    if blocks.live_unshared > blocks.live:
        words.append(f"; without sharing the requests would hold {blocks.live_unshared:,}")
    return Group(bar, words)


def _evictions(stats: Stats, before: Reading | None) -> Text:
    """Blocks that left the cache, by cause: since the reading before, or since the start."""
    earlier = before.stats.evictions if before is not None and before.stats is not None else ()
    num_before = {eviction.cause: eviction.num_blocks for eviction in earlier}
    left = [
        f"{num_left:,} {eviction.cause.replace('_', ' ')}"
        for eviction in stats.evictions
        if (num_left := eviction.num_blocks - num_before.get(eviction.cause, 0)) > 0
    ]
    since = "since the start" if before is None else "since the last look"
    return Text(f"      left the cache {since}: {', '.join(left) or 'nothing'}")


def _requests(live: LiveRequests) -> RenderableType:
    num_waiting = sum(request.state is RequestState.WAITING for request in live.requests)
    num_shown = min(_MAX_REQUESTS, len(live.requests))
    title = f"requests: {len(live.requests) - num_waiting} running, {num_waiting} waiting"
    if num_left_out := len(live.requests) - num_shown + live.num_left_out:
        title += f"; {num_left_out:,} more are not shown"
    table = Table(
        "request", "tenant", "state", "prompt", "cached", "answer", "blocks", "shared", "age", box=None
    )
    for column in table.columns[3:]:
        column.justify = "right"
    for request in live.requests[:num_shown]:
        table.add_row(*_request_row(request))
    heading = Text(title, style="bold")
    return Group(heading, table) if live.requests else heading


def _request_row(request: LiveRequest) -> list[str]:
    choices = f" x{request.num_choices}" if request.num_choices > 1 else ""
    return [
        printable(request.request_id)[:_MAX_ID_LENGTH] + choices,
        printable(request.tenant),
        request.state.value,
        f"{request.prompt_tokens:,}",
        share(request.cached_tokens, request.prompt_tokens),
        f"{request.output_tokens:,}",
        f"{request.num_blocks:,}",
        f"{request.num_shared_blocks:,}",
        seconds(request.age_seconds),
    ]


def _latencies(latencies: tuple[LatencyStats, ...]) -> Table:
    table = Table("latency", "p50", "p90", "p99", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for latency in latencies:
        percentiles = (latency.p50_seconds, latency.p90_seconds, latency.p99_seconds)
        table.add_row(latency.name.replace("_", " "), *map(seconds, percentiles))
    return table


def _prefixes(tree: Tree) -> RenderableType:
    heading = Text("hottest prefixes", style="bold")
    hottest = sorted(tree.nodes, key=attrgetter("num_readers", "last_used", "num_tokens"), reverse=True)
    table = Table("readers", "tokens", "blocks", "owner", "begins", box=None)
    for column in table.columns[:3]:
        column.justify = "right"
    for node in hottest[:_MAX_PREFIXES]:
        preview = " ".join(printable(node.preview).split())[:_MAX_PREVIEW_LENGTH]
        owner = "public" if node.public else printable(node.tenant)
        table.add_row(
            f"{node.num_readers}", f"{node.num_tokens:,}", f"{node.num_blocks:,}", owner, Text(preview)
        )
    return Group(heading, table) if tree.nodes else Group(heading, Text("nothing is cached", style="dim"))
