"""Takes a worker through the matrix."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from prefixcache_client.answers import Generation
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.baseline.recording import FIGURES, Recording, ScenarioRounds
from prefixcache_client.baseline.scenario import Scenario, fitting


class Recorder:
    """Measures one worker, which should have nothing else to do."""

    def __init__(
        self,
        client: AsyncClient,
        scenarios: Sequence[Scenario],
        *,
        num_rounds: int,
        label: str,
        progress: Callable[[], None],
    ) -> None:
        """`progress` hears of each scenario of each round, the warm-up's too."""
        self._client = client
        self._scenarios = scenarios
        self._num_rounds = num_rounds
        self._label = label
        self._progress = progress

    async def record(self) -> Recording:
        """Send each scenario once to warm up, then all of them in turn, round after round.

        So what the machine does meanwhile falls on all scenarios alike. Scenarios that do not fit the context
        are left out. Raises PrefixCacheClientError when a request fails.
        """
        began = datetime.now(UTC).isoformat(timespec="seconds")
        info = await self._client.model_info()
        settings = await self._client.diagnosis.settings()
        scenarios = fitting(self._scenarios, info.context_length)
        values: dict[str, dict[str, list[float]]] = {
            scenario.name: {kind.name: [] for kind in FIGURES} for scenario in scenarios
        }
        speeds: list[float] = []
        for number in range(1 + self._num_rounds):
            is_warm_up = number == 0
            if not is_warm_up:
                speeds.append((await self._client.diagnosis.measure_machine()).read_bytes_per_second)
            for scenario in scenarios:
                prompts = scenario.prompts(info.vocabulary_size, f"{began} {number}")
                figures = await self._burst(scenario, prompts)
                if not is_warm_up:
                    for name, value in figures.items():
                        values[scenario.name][name].append(value)
                self._progress()
        return Recording(
            label=self._label,
            began=began,
            settings=dict(settings.settings),
            machine=dict(settings.machine),
            model=asdict(info),
            read_bytes_per_second=tuple(speeds),
            rounds=tuple(
                ScenarioRounds(
                    scenario=scenario,
                    values={name: tuple(column) for name, column in values[scenario.name].items()},
                )
                for scenario in scenarios
            ),
        )

    async def _burst(self, scenario: Scenario, prompts: Sequence[list[int]]) -> dict[str, float]:
        await self._client.stats(reset_peaks=True)
        start = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(scenario, prompt)) for prompt in prompts]
        except ExceptionGroup as failures:  # the first failure cancelled the rest and tells enough
            raise failures.exceptions[0] from None
        seconds = time.perf_counter() - start
        answers = [task.result() for task in tasks]
        blocks = (await self._client.stats()).blocks
        first_tokens = [answer.timing.first_token_seconds for answer in answers]
        per_token = [
            (answer.timing.total_seconds - answer.timing.first_token_seconds) / (scenario.output_tokens - 1)
            for answer in answers
        ]
        return {
            "output": sum(answer.usage.completion_tokens for answer in answers) / seconds,
            "first token": statistics.median(first_tokens),
            "per token": statistics.median(per_token),
            "KV held": blocks.peak_live * blocks.block_bytes,
            "pool in use": blocks.peak_live / blocks.total,
        }

    async def _answer(self, scenario: Scenario, prompt: list[int]) -> Generation:
        return await self._client.generate(
            prompt, max_tokens=scenario.output_tokens, temperature=0.0, ignore_eos=True
        )
