"""A measurement as one web page that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.report.chart import Chart, Series, svg
from prefixcache_client.load.report.charts import report_charts, thinned
from prefixcache_client.load.report.summary import Part, Summary
from prefixcache_client.load.report.tables import (
    MOST_PARTS,
    NO_NAME,
    UNTOLD,
    ReportTable,
    is_text,
    part_table,
    settings_table,
    whole_tables,
)
from prefixcache_client.load.report.units import NONE, number, seconds, share

_MOST_ROWS = 60
"""Of the table behind a chart."""


def write_html(measurement: Measurement, summary: Summary, path: str) -> None:
    """Write the page, which shows itself light or dark as the reader's browser asks. Raises OSError."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(html_page(measurement, summary))


def html_page(measurement: Measurement, summary: Summary) -> str:
    """The page. Every text of the measurement is shown as it stands, none is read as markup."""
    workload = str(measurement.workload.get("kind", "load"))
    address = str(measurement.target.get("address", ""))
    title = f"{workload} on {address}" if address else workload
    tables = (*whole_tables(summary), settings_table(measurement))
    main = (
        *_charts(report_charts(measurement)),
        *_parts(summary),
        "<h2>Figures</h2>",
        '<div class="tables">',
        *map(_table_card, tables),
        "</div>",
    )
    return Template(_read("page.html")).substitute(
        title=escape(title),
        style=_read("page.css"),
        header="\n".join(_header(measurement, summary)),
        main="\n".join(main),
    )


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _header(measurement: Measurement, summary: Summary) -> Iterator[str]:
    duration = f"{seconds(measurement.seconds)}, {number(summary.num_requests)} requests"
    yield f"<p>{escape(measurement.began)}, {duration}</p>"
    yield '<dl class="tiles">'
    for name, value, detail in _tiles(summary):
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd>{escape(detail)}</dd></div>"
    yield "</dl>"
    if summary.notes:
        yield '<ul class="notes">'
        yield from (f"<li>{escape(note)}</li>" for note in summary.notes)
        yield "</ul>"


def _tiles(summary: Summary) -> Iterator[tuple[str, str, str]]:
    latencies, throughput, tokens = summary.latencies, summary.throughput, summary.tokens
    for name, values in (
        ("First token p50", latencies.first_token),
        ("Per token p50", latencies.per_token),
        ("End to end p50", latencies.total),
    ):
        yield (
            name,
            seconds(values.p50 if values else None),
            f"p99 {seconds(values.p99 if values else None)}",
        )
    yield (
        "Requests /s",
        number(throughput.requests_per_second if throughput else None),
        f"{number(summary.sending.planned_per_second)} planned",
    )
    yield (
        "Output tokens /s",
        number(throughput.output_tokens_per_second if throughput else None),
        f"{number(tokens.output)} in all",
    )
    of_tokens = UNTOLD if tokens.prompt is None else f"of {number(tokens.prompt)} tokens"
    yield "Prompts cached", share(tokens.cached_share), of_tokens
    if summary.goodput is not None:
        yield (
            "Within the limits",
            share(summary.goodput.share),
            f"{number(summary.goodput.requests_per_second)} a second",
        )
    num_failed = summary.num_requests - summary.num_answered
    yield "Failed", number(num_failed), f"of {number(summary.num_requests)}"


def _charts(charts: Sequence[Chart]) -> Iterator[str]:
    if not charts:
        return
    yield '<div class="charts">'
    for chart in charts:
        yield "<figure>"
        yield f"<figcaption>{escape(chart.title)}</figcaption>"
        if len(chart.series) > 1:
            yield '<ul class="legend">'
            yield from (_legend(series, i) for i, series in enumerate(chart.series, start=1))
            yield "</ul>"
        yield svg(chart)
        yield from _chart_table(chart)
        yield "</figure>"
    yield "</div>"


def _legend(series: Series, index: int) -> str:
    style = "line" if series.style == "area" else series.style
    sample = "M11 5h0" if style == "dots" else "M1 5H21"
    line = f'<path class="{style} series-{index}" d="{sample}"/>'
    return f'<li><svg viewBox="0 0 22 10" aria-hidden="true">{line}</svg>{escape(series.name)}</li>'


def _chart_table(chart: Chart) -> Iterator[str]:
    """The numbers behind the lines. Dots are left out: every request is in the JSON and in the CSV."""
    yield '<details><summary>Numbers</summary><div class="scroll" tabindex="0">'
    for series in chart.series:
        if series.style == "dots":
            continue
        points = thinned(series.points, _MOST_ROWS)
        rows = [(chart.x.text(x), NONE if y is None else chart.y.text(y)) for x, y in points]
        yield _table(ReportTable(series.name, (chart.x.label, chart.y.label), tuple(rows)))
    yield "</div></details>"


def _parts(summary: Summary) -> Iterator[str]:
    for what, parts in (("tenant", summary.tenants), ("turn", summary.turns)):
        if len(parts) < 2:
            continue
        shown = parts[:MOST_PARTS]
        yield f"<h2>By {what}</h2>"
        yield '<div class="charts">'
        yield from _bar_figure("First token, p50", shown, _first_token_p50, seconds)
        yield from _bar_figure(
            "Cached share of the prompts", shown, lambda part: part.tokens.cached_share, share, full=1.0
        )
        yield "</div>"
        yield _table_card(part_table(what, parts))


def _first_token_p50(part: Part) -> float | None:
    return part.latencies.first_token.p50 if part.latencies.first_token else None


def _bar_figure(
    title: str,
    parts: Sequence[Part],
    value: Callable[[Part], float | None],
    text: Callable[[float | None], str],
    full: float | None = None,
) -> Iterator[str]:
    """A bar for each part; the longest is `full`, or without it the highest value."""
    values = [value(part) for part in parts]
    known = [figure for figure in values if figure is not None]
    if not known:
        return
    most = full or max(known) or 1.0
    yield f'<figure><figcaption>{escape(title)}</figcaption><div class="bars">'
    for part, figure in zip(parts, values, strict=True):
        width = 0.0 if figure is None else min(100 * figure / most, 100)
        yield (
            f"<span>{escape(part.name or NO_NAME)}</span>"
            f'<span class="bar" aria-hidden="true"><i style="width:{width:.1f}%"></i></span>'
            f"<span>{text(figure)}</span>"
        )
    yield "</div></figure>"


def _table_card(table: ReportTable) -> str:
    remark = f'<p class="remark">{escape(table.remark)}</p>' if table.remark else ""
    return f'<div class="table"><div class="scroll" tabindex="0">{_table(table)}</div>{remark}</div>'


def _table(table: ReportTable) -> str:
    """The first cell of a row names it. Numbers stand to the right."""
    kinds = [' class="words"' if is_text(table, i) else "" for i in range(len(table.headings))]
    head = ""
    if any(table.headings):
        head = "".join(
            f'<th scope="col"{kind}>{escape(heading)}</th>'
            for heading, kind in zip(table.headings, kinds, strict=True)
        )
        head = f"<thead><tr>{head}</tr></thead>"
    rows = []
    for name, *values in table.rows:
        cells = "".join(
            f"<td{kind}>{escape(value)}</td>" for value, kind in zip(values, kinds[1:], strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return f"<table><caption>{escape(table.title)}</caption>{head}<tbody>{''.join(rows)}</tbody></table>"
