"""On a healthy engine the audit finds nothing, whatever arrives when: the most important thing about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from support.audited_engine import AuditedEngine
from support.hand_engine import HandEngine, stream
from support.tiny_model import tiny_decoder

from prefixcache_worker.attention.approximation import Approximation
from prefixcache_worker.attention.kv_format import choose_format
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.model.model import AttentionWindow

NARROW, WITH_SINKS = AttentionWindow(13), AttentionWindow(9, 4)
MODELS = {
    "global": tiny_decoder(),
    "windows": tiny_decoder(windows=(NARROW, NARROW)),
    "both": tiny_decoder(windows=(NARROW, None)),
}
CONTEXT = 256


class Arrival(NamedTuple):
    """A request, and what a client or a test does to it."""

    step: int
    family: str
    num_family_tokens: int
    num_own_tokens: int
    max_tokens: int
    num_choices: int
    use_cache: bool
    cancelled_after: int | None
    preempted_after: int | None

    def prompt(self, number: int) -> list[int]:
        return stream(self.family, self.num_family_tokens) + [
            900 - 10 * number + i for i in range(self.num_own_tokens)
        ]


later = st.none() | st.integers(0, 9)
arrivals = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 20),
        family=st.sampled_from("ab"),
        num_family_tokens=st.sampled_from([0, 7, 8, 30, 64, 100, 130]),
        num_own_tokens=st.integers(1, 9),
        max_tokens=st.integers(1, 12),
        num_choices=st.sampled_from([1, 1, 1, 2, 3]),
        use_cache=st.sampled_from([True, True, True, False]),
        cancelled_after=later,
        preempted_after=later,
    ),
    min_size=1,
    max_size=10,
)
engines: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(list(MODELS.values())),
            "scheme": st.sampled_from(["shared", "shared", "shared", "paged", "contiguous"]),
            "approximation": st.just(Approximation()),
        }
    ),
    st.fixed_dictionaries(
        {
            "model": st.just(MODELS["global"]),
            "scheme": st.sampled_from(["shared", "paged"]),
            "approximation": st.sampled_from(
                [Approximation(window=WITH_SINKS), Approximation(sparse_reads=SparseReads(4))]
            ),
        }
    ),
)
limits = st.fixed_dictionaries(
    {
        "num_slots": st.integers(160, 480),  # the longest prompt and answer have 151 tokens
        "max_batch_tokens": st.sampled_from([1, 5, 16, 64, 200]),
        "max_running": st.integers(3, 6),
        "backend": st.sampled_from(["torch", "auto"]),
        "kv_dtype": st.sampled_from(["fp32", "int8"]),
    }
)


def run(audited: AuditedEngine, requests: list[Arrival]) -> None:
    """Let everything come at its step, and step until nothing is left."""
    hand, engine = audited.hand, audited.hand.engine
    order = sorted(range(len(requests)), key=lambda i: requests[i].step)
    arrived: dict[int, int] = {}
    for step in range(3000):
        while order and requests[order[0]].step <= step:
            number = order.pop(0)
            request = requests[number]
            hand.add(
                request.prompt(number),
                request.max_tokens,
                request_id=str(number),
                n=request.num_choices,
                use_cache=request.use_cache,
            )
            arrived[number] = step
        for number, since in arrived.items():
            ended = str(number) in hand.completions.keys() | hand.failures.keys()
            if not ended and requests[number].preempted_after == step - since:
                engine.preempt(str(number))
            if not ended and requests[number].cancelled_after == step - since:
                engine.cancel(str(number))
                hand.failures[str(number)] = AssertionError("cancelled")
        if engine.has_work:
            hand.step()
        elif not order:
            return
    raise AssertionError("still busy")


@settings(deadline=None, max_examples=50)
@given(requests=arrivals, engine=engines, limits=limits, block_size=st.sampled_from([4, 8, 16]))
def test_a_healthy_engine_gives_no_finding(requests, engine, limits, block_size) -> None:
    shape = engine["approximation"].shape(engine["model"].attention_shape)
    hand = HandEngine(
        **engine,
        num_blocks=limits["num_slots"] // block_size,
        block_size=block_size,
        backend=limits["backend"],
        kv_format=choose_format(limits["kv_dtype"], None, shape),
        context_length=CONTEXT,
        max_batch_tokens=limits["max_batch_tokens"],
        max_running=limits["max_running"],
    )
    audited = AuditedEngine(hand)
    run(audited, requests)
    assert audited.findings == []
    for record in audited.records:
        assert record.rows_needed <= record.rows_read <= record.rows_unshared
