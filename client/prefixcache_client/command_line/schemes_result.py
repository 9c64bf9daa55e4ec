"""What a comparison of schemes found out: as JSON and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from prefixcache_client.command_line.output import printable, seconds, size
from prefixcache_client.command_line.schemes_load import SchemesLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What one worker did with so many requests at once. A list has one figure for each round."""

    batch: int
    num_running: int
    """The most that ran together."""
    num_preemptions: int
    """The most of a round."""
    kv_bytes_per_request: float
    """Of those that ran together, at the peak."""
    wasted_share: float
    tokens_per_second: list[float]
    first_token_seconds: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeResult:
    """One worker, and what it did."""

    name: str
    block_size: int
    num_blocks: int
    pool_bytes: int
    num_table_blocks: int
    """Blocks that the table of one request has in the end."""
    num_fit: int
    """Requests that have room at the same time, by the sizes."""
    num_seen_to_fit: int
    """The most that ran together with nobody giving way: `num_fit`, or the largest batch if that is less."""
    first_request_seconds: float
    """First token of the first request that the worker ever had."""
    batches: list[BatchResult]

    def at(self, batch: int) -> BatchResult:
        """Requires: it was measured."""
        return next(result for result in self.batches if result.batch == batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemesResult:
    """A comparison of schemes; the JSON."""

    model: str
    context_length: int
    load: SchemesLoad
    num_rounds: int
    schemes: list[SchemeResult]

    @property
    def batches(self) -> list[int]:
        return [result.batch for result in self.schemes[0].batches]

    @property
    def block_sizes(self) -> list[int]:
        return sorted({scheme.block_size for scheme in self.schemes})

    def label(self, scheme: SchemeResult) -> str:
        """Its name, or its block size where that is what tells it from the others, or both."""
        if len(self.block_sizes) == 1:
            return scheme.name
        if len({other.name for other in self.schemes}) == 1:
            return f"blocks of {scheme.block_size}"
        return f"{scheme.name}/{scheme.block_size}"


def schemes_table(result: SchemesResult) -> Group:
    """A line for each scheme, under each batch."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    has_sizes = len(result.block_sizes) > 1
    table.add_column("sent", justify="right", no_wrap=True)
    table.add_column("scheme", no_wrap=True)
    for heading in (
        *(("table",) if has_sizes else ()),
        "fit",
        "ran",
        "KV each",
        "wasted",
        "tokens/s",
        "first",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for batch in result.batches:
        for scheme in result.schemes:
            row = scheme.at(batch)
            table.add_row(
                f"{batch:,}" if scheme is result.schemes[0] else "",
                result.label(scheme),
                *((f"{scheme.num_table_blocks:,}",) if has_sizes else ()),
                f"{scheme.num_fit:,}",
                f"{row.num_running:,}" + (f" -{row.num_preemptions}" if row.num_preemptions else ""),
                size(row.kv_bytes_per_request),
                f"{100 * row.wasted_share:.1f} %",
                f"{statistics.median(row.tokens_per_second):,.1f}",
                seconds(statistics.median(row.first_token_seconds)),
                end_section=scheme is result.schemes[-1],
            )
    notes = (Text(note, "dim") for note in _notes(result))
    return Group(Text(subject(result), "bold"), Text(conditions(result)), table, *notes)


def subject(result: SchemesResult) -> str:
    """What was asked of which model."""
    load = result.load
    return (
        f"{printable(result.model)}, per request {load.prefix_tokens:,} prompt tokens in common, "
        f"{load.suffix_tokens:,} of its own, {load.output_tokens:,} generated"
    )


def conditions(result: SchemesResult) -> str:
    """Within which limits."""
    least, most = (end(scheme.pool_bytes for scheme in result.schemes) for end in (min, max))
    # Whole blocks of each kind: a little less than was asked for.
    memory = size(most) if least > 0.99 * most else f"{size(least)} to {size(most)}"
    rounds = "1 round" if result.num_rounds == 1 else f"medians of {result.num_rounds} rounds"
    return f"{memory} of KV each, context of {result.context_length:,} tokens, {rounds}"


def _notes(result: SchemesResult) -> Iterator[str]:
    """What the columns mean, and what they do not tell."""
    yield (
        "fit: requests with room at once at their full length, by the sizes; ran: the most that did, and -N"
        " were put back to make room; KV each, wasted: of those that ran, at the peak; tokens/s: output,"
        " while prompts are computed too; first: the time to the first token, median"
    )
    for scheme in result.schemes:
        num_to_fit = min(scheme.num_fit, max(result.batches))
        if scheme.num_seen_to_fit < num_to_fit:
            num_seen = scheme.num_seen_to_fit
            yield f"{result.label(scheme)}: {num_to_fit} should fit, and {num_seen} were seen to"
    if 1 in result.batches:
        first = [scheme.first_request_seconds for scheme in result.schemes]
        later = [s for scheme in result.schemes for s in scheme.at(1).first_token_seconds]
        yield (
            f"the first request a worker ever had: first token after {seconds(statistics.median(first))};"
            f" later ones, as cold: {seconds(statistics.median(later))}"
        )
