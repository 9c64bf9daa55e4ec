"""Whether a tenant can tell by the clock that another tenant has a prompt cached.

One tenant has prompts cached privately. Another one sends them, and prompts that nobody has seen, in
turn, and compares the times to the first token. To show that the probe can tell anything, it also sends
prompts that it has cached itself.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from report import Row

NUM_PAIRS = 240
PROMPT_TOKENS = 512
MAX_MEDIAN_DIFFERENCE = 0.05
MIN_P_VALUE = 0.01

TESTS = Path(__file__).parents[2]


def probe_rows() -> list[Row]:
    """The median ratio of first-token times, what a rank test makes of the pairs, and the control."""
    foreign, own = asyncio.run(_measure())
    ratio, control = statistics.median(foreign), statistics.median(own)
    quartiles = statistics.quantiles(foreign, n=4)
    p_value = signed_rank_p_value([math.log(pair) for pair in foreign])
    return [
        Row(
            name="first token, cached by another tenant / unseen",
            value=ratio,
            unit="x, median of pairs",
            spread=f"{quartiles[0]:.2f} to {quartiles[2]:.2f}",
            bar="1 +- 0.05",
            holds=abs(ratio - 1) <= MAX_MEDIAN_DIFFERENCE,
            note=f"{NUM_PAIRS} pairs of {PROMPT_TOKENS} tokens; the spread is the quartiles",
        ),
        Row(
            name="chance of such ranks if there is nothing to tell",
            value=p_value,
            unit="",
            bar=f">= {MIN_P_VALUE}",
            holds=p_value >= MIN_P_VALUE,
            note="Wilcoxon's signed-rank test",
        ),
        Row(
            name="first token, cached by the tenant itself / unseen",
            value=control,
            unit="x, median of pairs",
            bar="<= 0.8",
            holds=control <= 0.8,
            note="so the clock would tell a hit",
        ),
    ]


def signed_rank_p_value(differences: Sequence[float]) -> float:
    """Two-sided, by the normal approximation (Wilcoxon 1945). Requires: at least 20, without ties."""
    ranked = sorted(differences, key=abs)
    rank_sum = sum(rank for rank, difference in enumerate(ranked, 1) if difference > 0)
    count = len(ranked)
    mean = count * (count + 1) / 4
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return math.erfc(abs(rank_sum - mean) / deviation / math.sqrt(2))


async def _measure() -> tuple[list[float], list[float]]:
    """The ratio to an unseen prompt's time, for prompts that another tenant has, and for its own."""
    sys.path.insert(0, str(TESTS))  # for `support`, as pytest has it
    from support.served_worker import ServedWorker, greedy_request, served
    from support.tiny_loaded_model import loaded
    from support.tiny_model import tiny_decoder

    drawn = random.Random(1)

    def prompts() -> list[list[int]]:
        return [[drawn.randrange(4, 1000) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_PAIRS)]

    async def seconds(worker: ServedWorker, prompt: list[int], tenant: str) -> float:
        begun = time.perf_counter()
        async for _ in worker.generate(greedy_request(prompt, 1), tenant=tenant):
            break
        return time.perf_counter() - begun

    kinds = {"foreign": prompts(), "own": prompts(), "unseen": prompts()}
    num_blocks = 5 * NUM_PAIRS * (PROMPT_TOKENS // 16 + 1)
    async with served(loaded(tiny_decoder(context_length=2 * PROMPT_TOKENS)), kv_blocks=num_blocks) as worker:
        for prompt in kinds["foreign"]:
            await seconds(worker, prompt, "victim")
        for prompt in kinds["own"]:
            await seconds(worker, prompt, "prober")
        foreign, own = [], []
        for number in range(NUM_PAIRS):
            took = {}
            for kind in drawn.sample(list(kinds), len(kinds)):
                took[kind] = await seconds(worker, kinds[kind][number], "prober")
            foreign.append(took["foreign"] / took["unseen"])
            own.append(took["own"] / took["unseen"])
    return foreign, own
