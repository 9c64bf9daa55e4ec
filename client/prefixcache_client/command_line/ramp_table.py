"""What came of a ramp, as a table of the report."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache_client.command_line.output import share
from prefixcache_client.load.measurement import RequestResult
from prefixcache_client.load.ramp import Ramp
from prefixcache_client.load.report.tables import ReportTable


def ramp_table(ramp: Ramp, results: Sequence[RequestResult]) -> ReportTable:
    """A row for each rate, and below them the knee."""
    steps, knee = ramp.steps(results), ramp.knee(results)
    if knee is None:
        remark = f"the server does not keep up with {ramp.first_rate:g} a second: begin with less"
    elif steps[-1].is_at_least(ramp.least_share):
        remark = f"the server kept up with every rate up to {knee:g} a second"
    else:
        remark = f"the knee: the server kept up with {knee:g} a second, and not with the next rate"
    return ReportTable(
        "Ramp",
        ("rate", "offered", "kept", "share"),
        tuple(
            (
                f"{step.rate:g} /s",
                f"{step.num_offered:,}",
                f"{step.num_kept:,}",
                share(step.num_kept, step.num_offered),
            )
            for step in steps
        ),
        remark,
    )
