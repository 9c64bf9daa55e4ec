"""A model's decode steps, recorded once for each batch size and replayed for any plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from prefixcache_worker.attention.by_window import AttentionByLayer, distinct_windows
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import SEGMENT_ROWS, AttentionPlan
from prefixcache_worker.attention.triton.backend import TableAttention, TritonAttention
from prefixcache_worker.attention.triton.partials import Partials
from prefixcache_worker.attention.triton.step_table import StepTable, TableSize, tabulate
from prefixcache_worker.attention.triton.tile import choose_tile
from prefixcache_worker.model.model import AttentionShape, ForwardBatch, Model, StepAttention

EXTRA_PARTIALS = 8
"""Partial results of a sequence beyond one for each segment: it may join and leave shared runs inside one."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """What recorded steps have room for. A step with more is run without a recording."""

    max_running: int
    """Most sequences of a step."""
    context_length: int
    """Most rows of a sequence."""

    def num_partials(self, num_tokens: int) -> int:
        """Partial results of so many decoding sequences, in any usual plan."""
        return num_tokens * (-(-self.context_length // SEGMENT_ROWS) + EXTRA_PARTIALS)

    def table_size(self, num_tokens: int, block_size: int, group_size: int, tile_queries: int) -> TableSize:
        """Room for any usual plan of so many decoding sequences."""
        num_partials = self.num_partials(num_tokens)
        return TableSize(
            num_tokens=num_tokens,
            num_tasks=num_partials * -(-group_size // tile_queries),
            num_block_ids=num_tokens * (self.context_length // block_size) + 2 * num_partials,
            num_partials=num_partials,
        )


class DecodeGraph:
    """The forward of up to `num_tokens` decoding sequences, in buffers that stay where they are.

    Lengths, sharing and block ids are contents of these buffers, so one recording serves every plan. Tokens
    that are missing are filled up with ones that read nothing and are written nowhere.
    """

    def __init__(
        self,
        model: Model,
        store: KvStore,
        num_tokens: int,
        limits: GraphLimits,
        partials: Partials,
    ) -> None:
        """Records nothing yet. Graphs may share `partials`, as they never run at once."""
        shape, device = store.layout.shape, store.device
        tile = choose_tile(num_tokens * shape.group_size, shape.head_dim, store.keys.rows.dtype)
        size = limits.table_size(num_tokens, store.block_size, shape.group_size, tile.num_queries)
        self._model = model
        self._group_size = shape.group_size
        self._attention_of = {
            window: TableAttention(
                store, StepTable(size, store.block_size, device), partials, window=window, tile=tile
            )
            for window in distinct_windows(shape)
        }
        self._by_layer = AttentionByLayer(
            [self._attention_of[shape.window(layer)] for layer in range(shape.num_layers)]
        )
        self._columns = torch.zeros(4, num_tokens, dtype=torch.int64, device=device)
        self._replay: Callable[[], torch.Tensor] | None = None

    def run(self, batch: ForwardBatch, plans: Sequence[AttentionPlan]) -> torch.Tensor | None:
        """Logits of a decode step, valid until the next one: [num_logit_rows, vocabulary_size], float32.

        None if a plan has more than the buffers have room for. Queues copies and kernels, and awaits none.
        Requires one token of each sequence, at most as many as the graph has.
        """
        tables = {
            plan.window: tabulate(
                plan,
                group_size=self._group_size,
                tile_queries=self._attention_of[plan.window].tile.num_queries,
            )
            for plan in plans
        }
        for window, table in tables.items():
            if not self._attention_of[window].table.capacity.holds(table.size):
                return None
        for window, table in tables.items():
            self._attention_of[window].table.load(table)
        columns = (batch.token_ids, batch.positions, batch.prompt_lengths, batch.logit_rows)
        for target, column in zip(self._columns, columns, strict=True):
            target[: len(column)].copy_(column, non_blocking=True)
            target[len(column) :].zero_()
        if self._replay is None:
            self._replay = self._record()
        return self._replay()[: len(batch.logit_rows)]

    def _forward(self) -> torch.Tensor:
        return self._model.forward(ForwardBatch(*self._columns), self._by_layer)

    def _record(self) -> Callable[[], torch.Tensor]:
        """A function that repeats `_forward`: on a GPU one launch, elsewhere the forward itself."""
        if self._columns.device.type != "cuda":
            return self._forward
        stream = torch.cuda.Stream()  # where kernels are compiled and buffers chosen, before it is recorded
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._forward()

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay


class GraphedModel:
    """A `Model` whose decode steps are replayed; all other steps are the model's own."""

    def __init__(self, model: Model, store: KvStore, limits: GraphLimits) -> None:
        """Makes the buffers of all batch sizes: powers of two up to the most. Records nothing yet."""
        self._model = model
        shape = store.layout.shape
        sizes = [1 << i for i in range((limits.max_running - 1).bit_length() + 1)]
        most = limits.num_partials(sizes[-1])
        partials = Partials.empty(most, shape.num_query_heads, shape.head_dim, store.device)
        self._graphs = {
            num_tokens: DecodeGraph(model, store, num_tokens, limits, partials) for num_tokens in sizes
        }

    @property
    def attention_shape(self) -> AttentionShape:
        return self._model.attention_shape

    @property
    def vocabulary_size(self) -> int:
        return self._model.vocabulary_size

    @property
    def context_length(self) -> int:
        return self._model.context_length

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        """See `Model.forward`. Requires the Triton backend's attention. The logits of a decode step are
        valid until the next one."""
        plans = list({part.plan.window: part.plan for part in _parts(attention)}.values())
        num_tokens = len(batch.token_ids)
        graph = self._graphs.get(1 << (num_tokens - 1).bit_length())
        if graph is not None and len(plans[0].spans) == num_tokens == len(batch.logit_rows):
            logits = graph.run(batch, plans)
            if logits is not None:
                return logits
        return self._model.forward(batch, attention)


def _parts(attention: StepAttention) -> list[TritonAttention]:
    parts = attention.layers if isinstance(attention, AttentionByLayer) else [attention]
    assert all(isinstance(part, TritonAttention) for part in parts)
    return parts  # type: ignore[return-value]
