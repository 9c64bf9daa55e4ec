"""Engines with a fault in them, beside whole ones, and what both do."""

from __future__ import annotations

from typing import Any

import torch
from support.hand_engine import HandEngine, stream
from torch.utils._python_dispatch import TorchDispatchMode

from prefixcache_worker.faults.planting import plant_in_engine

KEEPERS = ("late-free", "leaked-reference")
"""Faults that break an invariant of the engine, which `HandEngine` proves after each step."""


def hand_engine(fault: str | None = None, **options: Any) -> HandEngine:
    """An engine to be stepped by hand, broken if a fault is named."""
    hand = HandEngine(**options)
    if fault is not None:
        plant_in_engine(fault, hand.engine)
    if fault in KEEPERS:
        hand.engine.check = lambda: None
    return hand


MIXED_PROMPTS = {
    "first": stream("a", 150),
    "shares a run": stream("a", 128) + stream("b", 30),
    "shares less": stream("a", 40) + stream("c", 3),
    "ends at a border": stream("d", 32),
    "short": stream("e", 1),
}


def answer_mixed_prompts(hand: HandEngine, max_tokens: int = 20) -> dict[str, list[int]]:
    """Prompts of many lengths, one alone and then all at once: their answers."""
    first, *others = MIXED_PROMPTS
    hand.add(MIXED_PROMPTS[first], max_tokens, request_id=first)
    hand.run()
    for name in others:
        hand.add(MIXED_PROMPTS[name], max_tokens, request_id=name)
    hand.run()
    return {name: hand.tokens(name) for name in MIXED_PROMPTS}


class CountedCopies(TorchDispatchMode):
    """Counts the bytes that `index_select` copies while it is entered: what the faults fetch for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.index_select.default:
            self.num_bytes += result.nbytes
        return result
