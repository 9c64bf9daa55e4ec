"""What a replay found out: as JSON, as CSV and as a table."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefixcache import TenantQuota
from prefixcache.replay import OPTIMUM, ReplayRow
from prefixcache_client.command_line.output import count, printable

MAX_TENANTS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """A replayed trace; the JSON."""

    trace: str
    block_size: int
    id_unit: str
    """"block" or "token": what prompts and hits are counted in."""
    num_requests: int
    """Requests replayed: fewer than the trace has after a limit or Ctrl-C."""
    num_trace_requests: int
    tenants: list[str]
    """Those whose requests were replayed."""
    quotas: dict[str, TenantQuota]
    rows: list[ReplayRow]

    def row(self, policy: str, num_blocks: int, tenant: str | None) -> ReplayRow:
        """Requires: it is there. O(rows)."""
        key = (policy, num_blocks, tenant)
        return next(row for row in self.rows if (row.policy, row.num_blocks, row.tenant) == key)

    def capacities(self) -> list[int]:
        """The sizes of the caches, in blocks. O(rows)."""
        return list(dict.fromkeys(row.num_blocks for row in self.rows))

    def policies(self, tenant: str | None) -> list[str]:
        """Those replayed; for all tenants also the optimum when it was asked for. O(rows)."""
        return list(dict.fromkeys(row.policy for row in self.rows if row.tenant == tenant))

    def groups(self) -> list[str | None]:
        """What to show: None, which is all tenants, and the tenants with the most to ask. O(rows)."""
        num_ids = {row.tenant: row.num_prompt_ids for row in self.rows if row.tenant is not None}
        largest = sorted(num_ids, key=num_ids.__getitem__, reverse=True)[:MAX_TENANTS_SHOWN]
        return [None, *sorted(largest)]


def replay_tables(result: ReplayResult) -> Group:
    """Hit ratios: a line for each policy, a column for each size; a table for all, and for each tenant."""
    title = f"{subject(result)}, hits in % of all prompt {result.id_unit}s"
    parts: list[RenderableType] = [Text(title, "bold")]
    for tenant in result.groups():
        table = Table(title=None if tenant is None else printable(tenant), title_style="bold")
        table.add_column("blocks", no_wrap=True)
        for num_blocks in result.capacities():
            table.add_column(f"{num_blocks:,}", justify="right")
        for policy in result.policies(tenant):
            cells = [_cell(result, policy, num_blocks, tenant) for num_blocks in result.capacities()]
            table.add_row(Text(policy, "dim" if policy == OPTIMUM else ""), *cells)
        parts.append(table)
    return Group(*parts, *(Text(note, "dim") for note in _notes(result)))


def subject(result: ReplayResult) -> str:
    """What was replayed."""
    requests = count(result.num_trace_requests, "request")
    if result.num_requests < result.num_trace_requests:
        requests = f"the first {result.num_requests:,} of {requests}"
    return f"{printable(result.trace)}: {requests}"


def write_csv(rows: list[ReplayRow], path: str) -> None:
    """One line for each row, under the names of its fields; an empty cell is None."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(ReplayRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def _cell(result: ReplayResult, policy: str, num_blocks: int, tenant: str | None) -> Text:
    """The hit ratio; the best policy's stands out."""
    row = result.row(policy, num_blocks, tenant)
    shown = f"{100 * row.hit_ratio:.1f}"
    if policy == OPTIMUM:
        return Text(shown, "dim")
    if row.share_of_optimum is not None:
        shown += f" ({row.share_of_optimum:.2f})"
    others = [name for name in result.policies(tenant) if name not in (policy, OPTIMUM)]
    is_best = all(row.num_hit_ids >= result.row(name, num_blocks, tenant).num_hit_ids for name in others)
    return Text(shown, "bold" if is_best and others else "")


def _notes(result: ReplayResult) -> Iterator[str]:
    """What the figures do not tell by themselves."""
    if OPTIMUM in result.policies(None):
        yield "optimum: a cache that knows the future; in brackets: hits divided by its hits"
    for num_blocks in result.capacities():
        rows = [row for row in result.rows if row.num_blocks == num_blocks and row.tenant is None]
        num_refused = [row.num_refused for row in rows if row.policy != OPTIMUM]
        if any(num_refused):
            fewest, most = min(num_refused), max(num_refused)
            numbers = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
            yield f"{num_blocks:,} blocks: {numbers} requests found no room and were refused"
    for tenant, quota in result.quotas.items():
        ceiling = "none" if quota.ceiling_blocks is None else f"{quota.ceiling_blocks:,}"
        absent = "" if tenant in result.tenants else "; but none of the requests is its"
        yield f"{printable(tenant)}: floor {quota.floor_blocks:,} blocks, ceiling {ceiling}{absent}"
    if len(result.tenants) > MAX_TENANTS_SHOWN:
        yield f"the {MAX_TENANTS_SHOWN} largest of {len(result.tenants):,} tenants; JSON and CSV have all"
