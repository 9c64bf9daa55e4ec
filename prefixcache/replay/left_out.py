"""What a lenient reading of a trace left out."""

from __future__ import annotations

from prefixcache.replay.trace_fields import TraceError

_MOST_NAMED = 10


class LeftOut:
    """Counts what is told to it, and keeps the first few by name. Is an `on_broken` for `read_trace`."""

    def __init__(self) -> None:
        self.num_broken = 0
        self._named: list[TraceError] = []

    def __call__(self, error: TraceError) -> None:
        self.num_broken += 1
        if len(self._named) < _MOST_NAMED:
            self._named.append(error)

    def sentences(self) -> list[str]:
        """One for each that is named, one for the others; empty when nothing was left out."""
        sentences = [f"left out: {error}" for error in self._named]
        if self.num_broken > len(self._named):
            sentences.append(f"left out: {self.num_broken - len(self._named):,} more")
        return sentences
