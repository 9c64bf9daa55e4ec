"""Shows many answers that stream at the same time, without mixing them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prefixcache_client.command_line.output import printable


class AnswerBoard:
    """One line per answer under way; a whole answer goes above the board once it is complete.

    On a terminal the lines move as tokens arrive. Elsewhere only whole answers are printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._texts: dict[tuple[str, str], str] = {}
        self._live = Live(console=console, get_renderable=self._lines, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def start(self, tenant: str, question: str) -> None:
        """A request is on its way. Requires: the pair is not under way already."""
        self._texts[tenant, question] = ""

    def add(self, tenant: str, question: str, text: str) -> None:
        """More of the answer has arrived."""
        self._texts[tenant, question] += text

    def finish(self, tenant: str, question: str, remark: str) -> None:
        """The answer is complete: print it whole, with `remark` in its heading."""
        answer = self._texts.pop((tenant, question))
        self.refresh()
        heading = Text.assemble((tenant, "bold cyan"), f"  {question}  ", (remark, "dim"))
        body = Text(printable(answer.strip()) + "\n")
        body.pad_left(2)
        self._console.print(heading, body, sep="\n")

    def refresh(self) -> None:
        """Bring the lines up to date now. On a terminal this also happens by itself, eight times a second."""
        self._live.refresh()

    def _lines(self) -> Table:
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=2, style="dim")
        table.add_column(no_wrap=True, ratio=3)
        width = max(10, self._console.width * 2 // 5)
        for (tenant, question), answer in self._texts.items():
            tail = " ".join(printable(answer).split())[-width:]
            table.add_row(tenant, Text(question), Text(tail or "..."))
        return table
