"""What came of a ramp, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from prefixcache_client.command_line.output import share
from prefixcache_client.load.measurement import RequestResult
from prefixcache_client.load.ramp import Ramp


def ramp_table(ramp: Ramp, results: Sequence[RequestResult]) -> Table:
    """A row for each rate, and the knee below."""
    steps = ramp.steps(results)
    knee = ramp.knee(results)
    if knee is None:
        caption = f"the server kept up with no rate: {ramp.first_rate:g} a second is too much"
    elif steps[-1].is_at_least(ramp.least_share):
        caption = f"the server kept up with every rate, the last of which was {knee:g} a second"
    else:
        caption = f"the server kept up with {knee:g} a second, and not with the next rate"
    table = Table("rate", "offered", "kept", "share", title="ramp", caption=caption, title_style="bold")
    for column in table.columns:
        column.justify = "right"
    for step in steps:
        offered, kept = f"{step.num_offered:,}", f"{step.num_kept:,}"
        table.add_row(f"{step.rate:g}/s", offered, kept, share(step.num_kept, step.num_offered))
    return table
