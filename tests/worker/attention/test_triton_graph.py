"""Decode steps through buffers that stay where they are, in Triton's interpreter: all of a recorded step
but the recording."""

import torch
from support.hand_engine import HandEngine, reference_model, stream
from support.tiny_model import tiny_decoder

from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.triton.backend import TritonAttention
from prefixcache_worker.attention.triton.decode_graph import GraphedModel, GraphLimits
from prefixcache_worker.attention.triton.warm_up import warm_up
from prefixcache_worker.model.model import AttentionWindow, ForwardBatch

LIMITS = GraphLimits(max_running=4, context_length=256)


def store_of(model) -> KvStore:
    """Random rows in every slot."""
    torch.manual_seed(0)
    store = KvStore(model.attention_shape, num_blocks=64, block_size=16)
    store.keys.rows.normal_()
    store.values.rows.normal_()
    return store


def step(model, store, spans) -> torch.Tensor:
    """Logits of one decode step, in the order of `spans`."""
    plan = plan_attention(spans, 16)
    positions = torch.tensor(plan.positions)
    batch = ForwardBatch(3 + positions % 7, positions, positions, torch.arange(len(spans)))
    logits = model.forward(batch, TritonAttention(plan, store))
    return logits[torch.tensor(plan.order).argsort()].clone()


def decoding(*lengths: int, prefix: int = 0) -> list[SequenceSpan]:
    """One new token each, behind `prefix` shared blocks and blocks of their own."""
    return [
        SequenceSpan([*range(prefix), *range(prefix + 12 * i, prefix + 12 * i + 12)], prefix * 16 + length, 1)
        for i, length in enumerate(lengths)
    ]


STEPS = (
    decoding(5, 40, 17),
    decoding(5, 6, 7, prefix=8),
    decoding(3, 3, 3, 9, prefix=10),
    decoding(100),
    decoding(6, 41, 18),
)
"""Other lengths, other sharing, fewer and more sequences."""


def test_every_plan_through_the_same_buffers_gives_what_a_table_of_its_own_gives():
    model = tiny_decoder(num_layers=1)
    graphed = GraphedModel(model, store_of(model), LIMITS)
    store = graphed._graphs[1]._attention_of[None]._store
    for spans in STEPS:
        rows = store.keys.rows.clone(), store.values.rows.clone()
        found = step(graphed, store, spans)
        written = store.keys.rows.clone()
        store.keys.rows.copy_(rows[0])
        store.values.rows.copy_(rows[1])
        expected = step(model, store, spans)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(written, store.keys.rows)
        assert (written != rows[0]).any(-1).sum() == len(spans) * 2  # a row of each head, and no other


def test_a_step_is_replayed_where_it_fits(monkeypatch):
    """A prefill is not one, a fifth sequence has no graph, a long context no room; a decode step is run."""
    model = tiny_decoder(num_layers=1)
    store = store_of(model)
    graphed = GraphedModel(model, store, LIMITS)
    eager: list[int] = []
    forward = model.forward

    def counted(batch, attention):
        eager.append(len(batch.token_ids))
        return forward(batch, attention)

    monkeypatch.setattr(model, "forward", counted)
    for spans, num_run in (
        (decoding(5, 6, 7), 4),  # filled up to a power of two
        ([SequenceSpan([1, 2], 3, 3)], 3),
        (decoding(1, 2, 3, 4, 5), 5),
        ([SequenceSpan([*range(64)] * 4, 4000, 1)], 1),
    ):
        plan = plan_attention(spans, 16)
        positions = torch.tensor(plan.positions)
        batch = ForwardBatch(positions % 7, positions, positions, torch.arange(len(spans)))
        assert len(graphed.forward(batch, TritonAttention(plan, store))) == len(spans)
        assert eager.pop() == num_run


def test_an_engine_gives_the_same_answers_with_and_without_graphs():
    prompts = [stream("a", 20), stream("a", 17) + stream("b", 5), stream("c", 3)]
    answers = []
    for with_graphs in (False, True):
        engine = HandEngine(backend="triton", max_batch_tokens=64)
        if with_graphs:
            engine.engine._model = GraphedModel(reference_model(), engine.store, LIMITS)
        together = [engine.add(prompt, 2 + i) for i, prompt in enumerate(prompts)]
        engine.run()
        answers.append([engine.tokens(request_id) for request_id in together])
    assert answers[0] == answers[1]


def test_warming_up_runs_every_size_and_a_prefill():
    """Afterwards no step is of a new kind; a window adds a table, not a kind."""
    windows = (None, AttentionWindow(30, 2))
    model = tiny_decoder(windows=windows)
    store = store_of(model)
    graphed = GraphedModel(model, store, LIMITS)
    warm_up(graphed, store, TritonAttention, max_batch_tokens=48, max_running=4)
    assert all(graph._replay is not None for graph in graphed._graphs.values())
    assert store.keys.rows.isfinite().all()
