"""Who looks on while the engine steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from prefixcache_worker.engine.batch import Batch, ScheduledSpan

logger = logging.getLogger(__name__)


class StepWatcher(Protocol):
    """Hears how far a step is, on the engine's thread. Changes nothing of it.

    In this order; a step for which nothing was chosen, or whose model fails, leaves out what it does not
    come to, but for `ended`.
    """

    def begun(self) -> None:
        """A step begins: nothing is chosen."""

    def chosen(self, spans: Sequence[ScheduledSpan]) -> None:
        """These run. Their handles have room for all of it, and the copies into them are still pending."""

    def prepared(self, batch: Batch) -> None:
        """The batch is laid out and planned. Its copies come next, then the model."""

    def computed(self) -> None:
        """The model has run, and nothing is made of its logits yet."""

    def ended(self) -> None:
        """Rows are published, tokens taken, and requests that are through have given back their blocks."""

    def dropped(self) -> None:
        """It has raised, and hears no more."""


class StepWatchers:
    """Those who look on now: most of the time nobody, which costs a step five empty loops.

    A watcher that raises is dropped, with the error in the log: it harms no step. Requires: `dropped` raises
    nothing.
    """

    def __init__(self) -> None:
        self._watchers: list[StepWatcher] = []

    def add(self, watcher: StepWatcher) -> None:
        """Let it watch from the next step on. Requires: it does not yet."""
        assert watcher not in self._watchers
        self._watchers.append(watcher)

    def remove(self, watcher: StepWatcher) -> None:
        """Let it watch no more; a no-op for one that does not."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def begun(self) -> None:
        self._tell(lambda watcher: watcher.begun())

    def chosen(self, spans: Sequence[ScheduledSpan]) -> None:
        self._tell(lambda watcher: watcher.chosen(spans))

    def prepared(self, batch: Batch) -> None:
        self._tell(lambda watcher: watcher.prepared(batch))

    def computed(self) -> None:
        self._tell(lambda watcher: watcher.computed())

    def ended(self) -> None:
        self._tell(lambda watcher: watcher.ended())

    def _tell(self, what: Callable[[StepWatcher], None]) -> None:
        for watcher in tuple(self._watchers):
            try:
                what(watcher)
            except Exception:
                logger.exception("a watcher of steps fails and is dropped")
                self.remove(watcher)
                watcher.dropped()
