"""The method from end to end on one worker: measure, check, go on."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from prefixcache_client.answers import ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.cache_answers import Stats
from prefixcache_client.diagnosis_answers import MachineSpeed, PoolLayout, WorkerSettings
from prefixcache_client.doctor.audit import AuditFigures, check_audit
from prefixcache_client.doctor.bottleneck import BottleneckFigures, find_bottleneck
from prefixcache_client.doctor.copies import CopyFigures, check_copies
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.fixed_answers import FixedAnswers, fixed_answers
from prefixcache_client.doctor.layout import LayoutFigures, check_layout_map, check_layout_speed
from prefixcache_client.doctor.mixed_workload import MixedWorkload
from prefixcache_client.doctor.profiled_answers import ProfiledAnswers, profile_answers
from prefixcache_client.doctor.report import Report
from prefixcache_client.doctor.sizing import SizingFigures, check_sizing
from prefixcache_client.doctor.slope import SlopeFigures, StepTimes, check_slope
from prefixcache_client.doctor.step_recorder import recorded_steps
from prefixcache_client.doctor.step_times import time_steps
from prefixcache_client.errors import FailedPreconditionError, ResourceExhaustedError

STEPS = {
    1: "slope",
    2: "layout",
    3: "audit",
    4: "copies",
    5: "settings",
    6: "bottleneck",
}
"""The steps of the method by their number."""
PROFILED_STEPS = frozenset({4, 6})
"""Those that leave a trace."""
_REFUSALS = (ResourceExhaustedError, FailedPreconditionError)
"""A worker that has no room, or is not set up for it, leaves a step undecided."""
_MOST_MEASUREMENTS = 3
"""What looks wrong by the clock is measured so often before it is called wrong."""
_STEP_PAIRS, _QUICK_STEP_PAIRS = 30, 12
_ROUNDS, _QUICK_ROUNDS = 3, 1
_ATTENTION_ROWS = 2048


async def examine(
    client: AsyncClient,
    *,
    steps: Collection[int] = tuple(STEPS),
    quick: bool = False,
    with_trace: bool = False,
    on_step: Callable[[str], None] = lambda name: None,
) -> tuple[Report, bytes]:
    """Examine a worker, and return the report and the trace of profiled steps, if it was asked for.

    `quick` times fewer steps: less is certain of step 1. `on_step` hears the name of each step before it
    begins. The trace is gzip, for chrome://tracing or ui.perfetto.dev. Every request is bounded and shares
    with nobody's: it has a salt of its own, or passes the cache by.

    Requires an admin's client. Raises PrefixCacheClientError when the worker cannot be examined.
    """
    settings = await client.diagnosis.settings()
    info, before = await client.model_info(), await client.stats()
    on_step("answers to fixed prompts")
    answers = await fixed_answers(client, num_rounds=_QUICK_ROUNDS if quick else _ROUNDS)
    examination = _Examination(client, info, settings, before, answers, quick, with_trace)
    findings: list[Finding] = []
    for number in sorted(steps):
        on_step(f"step {number}: {STEPS[number]}")
        try:
            findings += await examination.take(number)
        except _REFUSALS as error:
            findings.append(_undecided(number, str(error)))
    audit = examination.audit
    report = Report(
        model=info.name,
        build=info.build,
        settings=dict(settings.settings),
        machine=dict(settings.machine),
        findings=findings,
        answers=answers,
        is_alone=before.requests.running == 0 if audit is None else audit.is_alone,
    )
    return report, examination.profiles.trace if examination.profiles is not None else b""


@dataclass(slots=True)
class _Examination:
    """What has been measured so far: later steps use what earlier ones have, or measure it themselves."""

    client: AsyncClient
    info: ModelInfo
    settings: WorkerSettings
    before: Stats
    answers: FixedAnswers
    quick: bool
    with_trace: bool
    random: random.Random = field(default_factory=lambda: random.Random(0))
    salt: str = field(default_factory=lambda: f"doctor-{secrets.token_hex(4)}")
    machines: list[MachineSpeed] = field(default_factory=list)
    layout: PoolLayout | None = None
    audit: AuditFigures | None = None
    own_blocks: int = 0
    profiles: ProfiledAnswers | None = None

    async def take(self, number: int) -> list[Finding]:
        """One step's findings. Raises PrefixCacheClientError."""
        match number:
            case 1:
                return [await self._slope()]
            case 2:
                return await self._layout()
            case 3:
                return check_audit(await self._measured_audit())
            case 4:
                return await self._copies()
            case 5:
                return self._sizing()
            case _:
                return [await self._bottleneck()]

    @property
    def _is_sparse(self) -> bool:
        """Whether decoding steps choose the blocks that they read."""
        return "top-k-blocks" in self.settings.settings

    async def _slope(self) -> Finding:
        if self._is_sparse:
            return Finding(
                step=1,
                name="slope",
                verdict=Verdict.UNKNOWN,
                sentence="With --top-k-blocks a step chooses what it reads: its time is no line.",
                evidence={},
            )
        layout, machine = await self._measured_layout(), await self._measured_machine()
        attention = _seconds_by_order(machine)[layout.order] * self.info.num_layers / _ATTENTION_ROWS
        measured: list[StepTimes] = []
        while True:
            times = await time_steps(
                self.client,
                self.info,
                self.random,
                salt=self.salt,
                num_pairs=_QUICK_STEP_PAIRS if self.quick else _STEP_PAIRS,
            )
            measured += [times] if times is not None else []
            finding = check_slope(
                SlopeFigures(
                    measurements=tuple(measured),
                    token_bytes=layout.token_bytes,
                    block_size=self.info.block_size,
                    read_bytes_per_second=machine.read_bytes_per_second,
                    attention_seconds_per_row=attention,
                )
            )
            is_decided = finding.verdict is Verdict.HEALTHY or (
                self.quick and finding.verdict is Verdict.UNKNOWN
            )
            if times is None or is_decided or len(measured) == _MOST_MEASUREMENTS:
                return finding

    async def _layout(self) -> list[Finding]:
        layout = await self._measured_layout()
        await self._measured_machine()
        while True:
            figures = LayoutFigures(
                layout=layout,
                asked_order=self.settings.settings.get("kv-layout"),
                seconds_by_order=tuple(map(_seconds_by_order, self.machines)),
            )
            speed = check_layout_speed(figures)
            if speed.verdict is not Verdict.WARNING or len(self.machines) == _MOST_MEASUREMENTS:
                return [check_layout_map(figures), speed]
            self.machines.append(await self.client.diagnosis.measure_machine(num_rows=_ATTENTION_ROWS))

    async def _measured_audit(self) -> AuditFigures:
        workload = MixedWorkload(
            client=self.client,
            info=self.info,
            salt=self.salt,
            random=self.random,
            max_running=int(self.settings.settings["max-running"]),
        )
        before = await self.client.stats()
        async with recorded_steps(self.client) as steps:
            await workload.run()
        after = await self.client.stats()
        checked = await self.client.diagnosis.check_indexes()
        self.own_blocks = workload.most_blocks
        shares_prefixes = self.settings.settings.get("scheme", "shared") == "shared"
        self.audit = AuditFigures(
            steps=tuple(steps),
            hits=tuple(workload.hits) if shares_prefixes else (),
            ends=tuple(workload.ends),
            twins=tuple(workload.twins),
            index_findings=tuple(checked.findings),
            num_nodes=checked.num_nodes,
            num_preemptions=after.requests.preemptions - before.requests.preemptions,
            num_evicted=after.blocks.evicted - before.blocks.evicted,
            is_alone=workload.sent.accounts_for(before, after),
        )
        return self.audit

    async def _copies(self) -> list[Finding]:
        profiles = await self._measured_profiles()
        layout, machine = await self._measured_layout(), await self._measured_machine()
        return check_copies(
            CopyFigures(
                answers=profiles.answers,
                beginnings=profiles.beginnings,
                attention=layout.attention,
                is_sparse=self._is_sparse,
                token_bytes=layout.token_bytes,
                block_size=self.info.block_size,
                read_bytes_per_second=machine.read_bytes_per_second,
                is_alone=profiles.is_alone,
            )
        )

    def _sizing(self) -> list[Finding]:
        return check_sizing(
            SizingFigures(
                info=self.info,
                settings=self.settings.settings,
                stats=self.before,
                own_preemptions=0 if self.audit is None else self.audit.num_preemptions,
                own_blocks=self.own_blocks,
            )
        )

    async def _bottleneck(self) -> Finding:
        profile = (await self._measured_profiles()).answers[-1].profile
        machine = await self._measured_machine()
        seconds_by_order = _seconds_by_order(machine)
        own = seconds_by_order.pop((await self._measured_layout()).order, None)
        other = min(seconds_by_order.values(), default=None)
        return find_bottleneck(
            BottleneckFigures(
                answers=self.answers,
                profile=profile,
                read_bytes_per_second=machine.read_bytes_per_second,
                stats=self.before,
                layout_times_other=own / other if own and other else None,
            )
        )

    async def _measured_machine(self) -> MachineSpeed:
        if not self.machines:
            self.machines.append(await self.client.diagnosis.measure_machine(num_rows=_ATTENTION_ROWS))
        return self.machines[-1]

    async def _measured_layout(self) -> PoolLayout:
        if self.layout is None:
            self.layout = await self.client.diagnosis.layout()
        return self.layout

    async def _measured_profiles(self) -> ProfiledAnswers:
        if self.profiles is None:
            self.profiles = await profile_answers(
                self.client, self.info, self.random, salt=self.salt, with_trace=self.with_trace
            )
        return self.profiles


def _seconds_by_order(machine: MachineSpeed) -> dict[str, float]:
    return {layout.order: layout.seconds for layout in machine.layouts}


def _undecided(number: int, why: str) -> Finding:
    return Finding(
        step=number,
        name=STEPS[number],
        verdict=Verdict.UNKNOWN,
        sentence=f"The worker could not be examined: {why}",
        evidence={},
        advice="Examine it while nobody else uses it.",
    )
