"""All kinds of bad clients at once against one real process, and what has to be true of it afterwards."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from support.fault_storm import GrpcStorm, Tally
from support.hostile_clients import HostileClients
from support.http_storm import HttpStorm
from support.process_worker import READY_SECONDS, Footprint, footprint, http_address, process_worker
from support.slow_readers import STALL_SECONDS, SlowReaders
from support.tiny_checkpoint import VOCABULARY_SIZE

from prefixcache_client import AsyncClient, Stats
from prefixcache_client.worker_process import WorkerProcess
from prefixcache_worker.server.access.api_keys import make_key
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.key_file import KeyFile

NUM_AT_ONCE, NUM_SLOW_AT_ONCE = 32, 24
QUIET_SECONDS = 60.0
MAX_GROWTH_BYTES = 10 * 1000 * 1000
MAX_NEW_THREADS = 4
"""Of pools that grow while they are asked for much at once, to sizes of their own."""
MAX_NEW_FILES = 1
"""The channel to the process that tries constraints, which the first one starts."""
TENANTS = ("shop", "kiosk", "house")
REFERENCE_PROMPT = tuple(range(3, 90))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many of each kind."""

    calls: int
    slow: int
    hostile: int

    def share(self, part: float) -> Counts:
        return Counts(
            calls=round(part * self.calls), slow=round(part * self.slow), hostile=round(part * self.hostile)
        )


def warm_up(counts: Counts) -> Counts:
    """What comes before memory is measured: of all that is large something, and a quarter of what follows,
    for logs and histories of bounded length to fill."""
    quarter = counts.share(0.25)
    return Counts(
        calls=max(120, quarter.calls), slow=max(24, quarter.slow), hostile=max(300, quarter.hostile)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """What was done to a worker, and what it was like before and after."""

    tally: Tally
    before: Footprint
    """After the warm-up."""
    after: Footprint
    stats: Stats
    seconds: float


class ClientFaults:
    """One worker, with a pool that is too small for all that comes at once."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        seed: int,
        is_full: bool,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """With `is_full`, the worker has keys, tenants with limits, a tier, and a snapshot; else none."""
        self._seed = seed
        self._model = model
        self._progress = progress
        self._admin_key: str | None = None
        self._keys: list[str | None] = [None]
        self._arguments = [
            "--http-address", "127.0.0.1:0", "--kv-blocks", "160", "--kv-headroom", "0", "--audit",
            "--max-running", "24", "--max-waiting", "60", "--max-batch-tokens", "256",
            "--max-unread-tokens", "16", "--stall-seconds", str(STALL_SECONDS),
        ]  # fmt: skip
        if is_full:
            self._arguments += self._full(folder)

    def run(self, counts: Counts) -> FaultReport:
        """Raises AssertionError, TimeoutError where the worker is not as it has to be."""
        with process_worker(self._model, *self._arguments) as worker:
            worker.wait_ready(timeout_seconds=READY_SECONDS)
            try:
                report = asyncio.run(self._run(worker, counts))
                status = worker.stop()
            except BaseException:
                print(worker.log()[-300:])
                raise
            log = worker.log()
        assert status == 0, log[-4000:]
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:9000]
        assert "code=INTERNAL" not in log
        assert "audit: nothing is left of" in log
        return report

    async def _run(self, worker: WorkerProcess, counts: Counts) -> FaultReport:
        address = worker.wait_ready(timeout_seconds=0)
        async with AsyncClient(address, api_key=self._admin_key, deadline=QUIET_SECONDS) as client:
            reference = await self._reference(client)
            tally = Tally()
            num_files = footprint(worker).num_open_files
            await self._storm(worker, client, warm_up(counts), tally, self._seed)
            warm = await self._quiet(worker, client, num_files)
            before = footprint(worker)
            begun = time.monotonic()
            tally.endings.clear()
            await self._storm(worker, client, counts, tally, self._seed + 1)
            seconds = time.monotonic() - begun
            stats = await self._quiet(worker, client, num_files)
            after = footprint(worker)
            check_counts(tally, warm, stats)
            assert await self._reference(client) == reference
            assert await client.health()
        assert after.resident_bytes - before.resident_bytes < MAX_GROWTH_BYTES, (before, after)
        assert after.num_threads <= before.num_threads + MAX_NEW_THREADS, (before, after)
        return FaultReport(tally=tally, before=before, after=after, stats=stats, seconds=seconds)

    async def _storm(
        self, worker: WorkerProcess, client: AsyncClient, counts: Counts, tally: Tally, seed: int
    ) -> None:
        address, http = worker.wait_ready(timeout_seconds=0), http_address(worker)
        model_name = (await client.model_info()).name
        known = {"tally": tally, "keys": self._keys}
        hostile = HostileClients(address, http, seed=seed, num_messages=counts.hostile, **known)
        slow = SlowReaders(address, http, seed=seed, model_name=model_name, **known)
        over_http = HttpStorm(http, seed=seed, model_name=model_name, **known)
        storm = GrpcStorm(address, seed=seed, vocabulary_size=VOCABULARY_SIZE, **known)
        num_http = counts.calls // 2
        attacks = [
            *[storm.attack] * (counts.calls - num_http),
            *[over_http.attack] * num_http,
            *[hostile.attack] * counts.hostile,
        ]
        random.Random(seed).shuffle(attacks)
        async with storm.connected(), asyncio.TaskGroup() as group:
            group.create_task(self._all(worker, attacks, NUM_AT_ONCE, "calls"))
            group.create_task(
                self._all(worker, [slow.attack] * counts.slow, NUM_SLOW_AT_ONCE, "slow readers")
            )

    async def _all(
        self, worker: WorkerProcess, attacks: list[Callable[[], Awaitable[None]]], num_at_once: int, name: str
    ) -> None:
        remaining = iter(enumerate(attacks, 1))

        async def one_after_another() -> None:
            for number, attack in remaining:
                await attack()
                if number % 250 == 0:
                    resident_bytes = footprint(worker).resident_bytes
                    self._progress(f"{number} of {len(attacks)} {name}, {resident_bytes / 1e6:.0f} MB")

        async with asyncio.TaskGroup() as group:
            for _ in range(num_at_once):
                group.create_task(one_after_another())

    async def _quiet(self, worker: WorkerProcess, client: AsyncClient, num_files: int) -> Stats:
        """The figures once the worker has noticed that all clients have left, and has closed their files."""
        gc.collect()  # what the clients themselves still hold
        deadline = time.monotonic() + QUIET_SECONDS
        while True:
            stats, now = await client.stats(), footprint(worker)
            is_idle = not (stats.requests.running or stats.requests.waiting or stats.blocks.live)
            if is_idle and now.num_open_files <= num_files + MAX_NEW_FILES:
                return stats
            assert time.monotonic() < deadline, (num_files, now, stats)

    async def _reference(self, client: AsyncClient) -> tuple[int, ...]:
        answer = await client.generate(REFERENCE_PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
        return answer.choices[0].token_ids

    def _full(self, folder: Path) -> list[str]:
        path = folder / "keys.json"
        file = KeyFile(path)

        def key(tenant: str, role: Role) -> str:
            text, stored = make_key(tenant=tenant, role=role, label="", created="now")
            file.add(stored)
            return text

        self._admin_key = key("root", Role.ADMIN)
        self._keys = [key(tenant, role) for tenant in TENANTS for role in (Role.USER, Role.PUBLISHER)]
        limits = folder / "tenants.toml"
        limits.write_text(
            "[default]\nmax_pinned_blocks = 10\n"
            "[tenants.shop]\nmax_live_requests = 20\nfloor_blocks = 20\n"
            "[tenants.kiosk]\nceiling_blocks = 100\nmax_pinned_blocks = 10\n"
        )
        return [
            "--keys", str(path), "--tenants", str(limits), "--tier-memory", "1MiB",
            "--snapshot", str(folder / "snapshots"), "--snapshot-seconds", "1",
        ]  # fmt: skip


def check_counts(tally: Tally, before: Stats, after: Stats) -> None:
    """Raise AssertionError if the worker has other figures than its clients, who can't know of all calls
    that they left whether they were taken, nor of those whether they were finished."""
    endings = Counter[str]()
    for ending, count in tally.endings.items():
        kind, _, what = ending.partition(": ")
        endings["hostile" if kind.startswith("hostile") else what] += count
    finished = after.requests.finished - before.requests.finished
    cancelled = after.requests.cancelled - before.requests.cancelled
    failed = after.requests.failed - before.requests.failed
    assert endings["answered"] <= finished <= endings["answered"] + endings["left"] + endings["hostile"]
    assert endings["SLOW_READER"] <= cancelled
    assert finished + cancelled + failed <= endings.total()
