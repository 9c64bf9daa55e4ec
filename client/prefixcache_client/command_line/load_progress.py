"""How far a load is, on the terminal."""

from __future__ import annotations

from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from prefixcache_client.command_line.output import console
from prefixcache_client.load.measurement import RequestResult


class LoadProgress:
    """A bar for requests, or for time if the load ends by it, with the counts of answers and failures."""

    def __init__(self, *, num_requests: int | None, duration_seconds: float | None, to_stderr: bool) -> None:
        """Nothing is drawn where there is no terminal."""
        screen = console(stderr=to_stderr)
        self._progress = Progress(
            TextColumn("{task.fields[answered]:,} answered, {task.fields[failed]:,} failed"),
            BarColumn(),
            TimeElapsedColumn(),
            console=screen,
            transient=True,
            disable=not screen.is_terminal,
        )
        self._goes_by_time = duration_seconds is not None
        total = duration_seconds if self._goes_by_time else num_requests
        self._bar = self._progress.add_task("", total=total, answered=0, failed=0)
        self._num_answered = 0
        self._num_failed = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, result: RequestResult) -> None:
        """One more request has ended. Drawn at times, not now: this costs next to nothing."""
        if result.error is None:
            self._num_answered += 1
        else:
            self._num_failed += 1
        if not self._progress.disable:
            done = result.ended if self._goes_by_time else self._num_answered + self._num_failed
            self._progress.update(
                self._bar, completed=done, answered=self._num_answered, failed=self._num_failed
            )
