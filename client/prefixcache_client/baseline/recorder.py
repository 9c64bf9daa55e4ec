"""Takes a worker through the matrix."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from prefixcache_client.async_client import AsyncClient
from prefixcache_client.baseline.recording import FIGURES, Recording, ScenarioRounds
from prefixcache_client.baseline.scenario import Scenario, fitting
from prefixcache_client.burst import send_burst


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
        burst = await send_burst(self._client, prompts, output_tokens=scenario.output_tokens)
        per_token = [
            (answer.timing.total_seconds - answer.timing.first_token_seconds) / (scenario.output_tokens - 1)
            for answer in burst.answers
        ]
        return {
            "output": burst.tokens_per_second,
            "first token": burst.first_token_seconds,
            "per token": statistics.median(per_token),
            "KV held": burst.kv_bytes,
            "pool in use": burst.after.blocks.peak_live / burst.after.blocks.total,
        }
