"""How often pages may look at the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from prefixcache_worker.server.http.ui.engine_looks import (
    FORGOTTEN_SECONDS,
    FRESH_SECONDS,
    MAX_SHARE,
    EngineLooks,
)


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class CountingLoop:
    """Stands for the engine loop: each look takes so long on its thread."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.num_looks = 0

    async def call(self, function: Callable[[Any], Any]) -> Any:
        return function(self)

    def see(self, _: Any) -> int:
        self.clock.now += self.seconds
        self.num_looks += 1
        return self.num_looks


def looks_costing(seconds: float) -> tuple[EngineLooks, CountingLoop, Clock]:
    clock = Clock()
    loop = CountingLoop(clock, seconds)
    return EngineLooks(loop, clock=clock), loop, clock  # type: ignore[arg-type]


async def test_pages_share_a_look_while_it_is_fresh() -> None:
    looks, loop, clock = looks_costing(0)
    seen = await asyncio.gather(*(looks.look("now", loop.see, str) for _ in range(5)))
    assert seen == ["1"] * 5
    clock.now += FRESH_SECONDS
    assert await looks.look("now", loop.see, str) == "2"


async def test_kinds_are_told_apart() -> None:
    looks, loop, _ = looks_costing(0)
    assert await looks.look("now", loop.see, str) == "1"
    assert await looks.look(("tree", "acme"), loop.see, str) == "2"


async def test_a_dear_look_is_taken_as_seldom_as_its_share_allows() -> None:
    looks, loop, clock = looks_costing(0.3)
    await looks.look("tree", loop.see, str)
    rest = 0.3 / MAX_SHARE
    clock.now += rest - 0.01
    assert await looks.look("tree", loop.see, str) == "1"
    clock.now += 0.02
    assert await looks.look("tree", loop.see, str) == "2"


@pytest.mark.parametrize("num_kinds", [1, 2, 7])
async def test_all_kinds_together_take_no_more_than_the_share(num_kinds: int) -> None:
    looks, loop, clock = looks_costing(0.05)
    for kind in range(num_kinds):
        await looks.look(kind, loop.see, str)
    begun, looks_before = clock.now, loop.num_looks
    while clock.now < begun + 100:
        for kind in range(num_kinds):
            await looks.look(kind, loop.see, str)
        clock.now += 0.25
    taken = 0.05 * (loop.num_looks - looks_before)
    assert 0 < taken <= 1.1 * MAX_SHARE * (clock.now - begun)


async def test_closed_pages_leave_their_share_to_the_others() -> None:
    looks, loop, clock = looks_costing(0.3)
    for kind in range(9):
        await looks.look(kind, loop.see, str)
    clock.now += 9 * 0.3 / MAX_SHARE + FORGOTTEN_SECONDS
    assert await looks.look(0, loop.see, str) == "10"
    clock.now += 0.3 / MAX_SHARE + 0.01
    assert await looks.look(0, loop.see, str) == "11"


async def test_an_error_is_the_askers_and_is_not_remembered() -> None:
    looks, loop, _ = looks_costing(0)

    def fail(_: int) -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await looks.look("now", loop.see, fail)
    assert await looks.look("now", loop.see, str) == "2"
