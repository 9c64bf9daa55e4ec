"""What a worker may leave unread of what its model would read: nothing, unless it is asked to."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.model.model import AttentionShape, AttentionWindow


class Approximation(NamedTuple):
    """Answers are those of the model as long as nothing is left out."""

    window: AttentionWindow | None = None
    """Put over every layer that reads further; with sinks after Xiao et al. 2023."""
    sparse_reads: SparseReads | None = None

    def shape(self, shape: AttentionShape) -> AttentionShape:
        """The model's shape with the window put over it."""
        if self.window is None:
            return shape
        windows = [
            self.window if own is None or own.size > self.window.size else own
            for own in map(shape.window, range(shape.num_layers))
        ]
        return replace(shape, windows=tuple(windows))

    def of(self, shape: AttentionShape) -> Approximation:
        """What it comes to for a model: a window no narrower than the model's own leaves nothing out."""
        return self._replace(window=None) if self.shape(shape) == shape else self

    def leaves_out(self, span: SequenceSpan, block_size: int) -> bool:
        """Whether a step of a sequence reads less than the model may."""
        if self.window is not None and span.length > self.window.size + self.window.num_sinks:
            return True
        return self.sparse_reads is not None and self.sparse_reads.is_sparse(span, block_size)


EXACT = Approximation()
"""Everything is read."""
