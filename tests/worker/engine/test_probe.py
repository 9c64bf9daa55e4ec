"""Whether another tenant has a prompt cached cannot be told from the work that the engine does for it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from support.hand_engine import HandEngine, reference, stream

P, Q = stream("a", 150), stream("b", 150)


def work_for(engine: HandEngine, prompt: list[int]) -> dict[str, object]:
    """What a request of tenant `a` costs beside what runs already, and what it is told."""
    before = engine.engine.stats()
    request_id = engine.add(prompt, 4, tenant="a")
    num_steps = 0
    while request_id not in engine.completions:
        engine.step()
        num_steps += 1
    after = engine.engine.stats()
    tokens = {name: count - getattr(before.tokens, name) for name, count in asdict(after.tokens).items()}
    assert engine.tokens(request_id) == reference(prompt, 4)
    usage = asdict(engine.completions[request_id].usage)
    usage.pop("block_seconds", None)
    return {"steps": num_steps, "tokens": tokens, "usage": usage, "copied": after.blocks.copied}


@pytest.mark.parametrize("salt", ["", "pepper"])
def test_a_prompt_that_another_tenant_has_is_computed_as_one_that_nobody_has(salt: str) -> None:
    works = []
    for foreign in (P, Q):
        engine = HandEngine(max_batch_tokens=64)
        engine.generate(foreign, 4, tenant="b", salt=salt)
        works.append(work_for(engine, P))
    assert works[0] == works[1]
    assert works[0]["steps"] == 3 + 3


def test_a_prompt_that_another_tenant_is_computing_is_not_waited_for() -> None:
    works = []
    for foreign in (P, Q):
        engine = HandEngine(max_batch_tokens=64)
        engine.add(foreign, 40, tenant="b")
        engine.step()
        works.append(work_for(engine, P))
    assert works[0] == works[1]


def test_what_is_public_before_the_private_part_changes_nothing() -> None:
    works = []
    for foreign in (P, Q):
        engine = HandEngine(max_batch_tokens=64)
        engine.generate(stream("s", 64), 1, tenant="publisher", public=64)
        engine.generate(stream("s", 64) + foreign, 4, tenant="b")
        works.append(work_for(engine, stream("s", 64) + P))
    assert works[0] == works[1]
