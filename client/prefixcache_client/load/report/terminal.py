"""A summary on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from prefixcache_client.load.report.summary import Summary
from prefixcache_client.load.report.tables import ReportTable, is_text, part_tables, whole_tables


def summary_view(summary: Summary) -> Group:
    """The tables, below them what to know before relying on them. Texts are never read as markup."""
    tables = (*whole_tables(summary), *part_tables(summary))
    return Group(*map(table_view, tables), *(Text(note, style="yellow") for note in summary.notes))


def table_view(table: ReportTable) -> Table:
    """One table. Numbers stand to the right, each on one line; their headings may take several."""
    view = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=Text(table.title, style="bold"),
        title_justify="left",
        caption=Text(table.remark) if table.remark else None,
        caption_justify="left",
        show_header=any(table.headings),
    )
    for i, heading in enumerate(table.headings):
        if is_text(table, i):
            view.add_column(Text(heading))
        else:
            view.add_column(Text(heading.replace(" ", "\n")), justify="right", no_wrap=True)
    for row in table.rows:
        view.add_row(*map(Text, row))
    return view
