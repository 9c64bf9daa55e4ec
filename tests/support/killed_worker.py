"""The real process under load, killed again and again: what it comes back with, and what it answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from support.process_worker import READY_SECONDS, process_worker
from support.tiny_checkpoint import save_tiny_checkpoint, tiny_transformers_model, transformers_logits
from transformers import PreTrainedModel

from prefixcache.snapshot import open_snapshot
from prefixcache.snapshot_file import open_snapshot_file
from prefixcache_client import Client, UnavailableError
from prefixcache_client.worker_process import WorkerProcess

BLOCK_SIZE = 4
NUM_PROMPTS = 24
NUM_ANSWER_TOKENS = 6
NUM_CLIENTS = 3
LARGE_POOL, SMALL_POOL = 640, 90
"""Blocks that hold all prompts with their answers, and about a fifth of them."""
EMPTY = "starting with an empty cache:"
"""What the log says of a snapshot that could not be taken."""

Prompt = tuple[int, ...]


class KilledWorker:
    """A worker of a tiny checkpoint with a snapshot folder, killed at random moments of a random load."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = Random(seed)
        model = tiny_transformers_model()
        self._checkpoint = save_tiny_checkpoint(folder / "model", model)
        self._folder = folder / "snapshots"
        self._answers = {prompt: greedy(model, prompt) for prompt in self._prompts()}
        self._saved: frozenset[Prompt] = frozenset()
        """Prompts that have to be found, because a save that began after them has been reported."""
        self.num_found = 0
        """Prompts that were found after a restart because they had to."""
        self.num_cut_saves = 0
        """Kills in the middle of a save."""

    def live_and_die(self, *, num_blocks: int) -> None:
        """Come back, show that everything is right, work, and be killed. Raises AssertionError."""
        num_saved_blocks = self._check_file()
        with self._process(num_blocks) as worker:
            address = worker.wait_ready(timeout_seconds=READY_SECONDS)
            with Client(address, deadline=READY_SECONDS) as client:
                assert client.stats().blocks.idle == min(num_saved_blocks, num_blocks)
                if num_blocks == LARGE_POOL:
                    for prompt in self._saved:
                        assert self._ask(client, prompt) == len(prompt) - 1
                        self.num_found += 1
            self._saved = self._work_until_killed(worker, address)
            assert EMPTY not in worker.log()
        if num_blocks != LARGE_POOL:
            self._saved = frozenset()  # might have been evicted

    def stop_well(self) -> None:
        """Come back, answer everything, stop as asked, and come back with all of it."""
        for expects_all in (False, True):
            with self._process(LARGE_POOL) as worker:
                address = worker.wait_ready(timeout_seconds=READY_SECONDS)
                with Client(address, deadline=READY_SECONDS) as client:
                    for prompt in self._answers:
                        cached_tokens = self._ask(client, prompt)
                        assert cached_tokens == len(prompt) - 1 or not expects_all
                assert worker.stop() == 0
                assert EMPTY not in worker.log()

    def _process(self, num_blocks: int) -> WorkerProcess:
        return process_worker(
            self._checkpoint, "--snapshot", str(self._folder), "--snapshot-seconds", "1", "--audit",
            "--kv-blocks", str(num_blocks), "--kv-headroom", "0", "--block-size", str(BLOCK_SIZE),
        )  # fmt: skip

    def _check_file(self) -> int:
        """What a killed worker has left is one whole snapshot or none. Returns its blocks."""
        path = self._folder / "cache.snapshot"
        self.num_cut_saves += len(list(self._folder.glob("*.partial")))
        if not path.exists():
            assert not self._saved
            return 0
        with open_snapshot_file(path) as file:
            header = file.header
        with open_snapshot(path, header=header) as snapshot:
            num_blocks = snapshot.index.num_blocks
            snapshot.read_rows(((number, number) for number in range(num_blocks)), lambda *_: None)  # type: ignore[misc]
        return num_blocks

    def _work_until_killed(self, worker: WorkerProcess, address: str) -> frozenset[Prompt]:
        """Returns the prompts that were answered before the last save that was reported began."""
        finished: set[Prompt] = set()
        saved: frozenset[Prompt] = frozenset()
        begun = threading.Barrier(NUM_CLIENTS + 2)

        def ask_on(random: Random) -> None:
            with Client(address, deadline=READY_SECONDS) as client:
                begun.wait()
                while True:
                    prompt = random.choice(list(self._answers))
                    try:
                        self._ask(client, prompt)
                    except UnavailableError:
                        return
                    finished.add(prompt)

        def save_on() -> frozenset[Prompt]:
            nonlocal saved
            with Client(address, deadline=READY_SECONDS) as client:
                begun.wait()
                while True:
                    before = frozenset(finished)
                    try:
                        client.snapshot()
                    except UnavailableError:
                        return saved
                    saved = before

        with ThreadPoolExecutor(NUM_CLIENTS + 1) as pool:
            asking = [pool.submit(ask_on, Random(self._random.random())) for _ in range(NUM_CLIENTS)]
            saving = pool.submit(save_on)
            begun.wait()
            # The moment is random, whatever has happened until then.
            time.sleep(self._random.uniform(0.0, 1.0))
            os.kill(worker.process_id, signal.SIGKILL)
            for asked in asking:
                asked.result()
            return saving.result()

    def _ask(self, client: Client, prompt: Prompt) -> int:
        """Cached tokens of a prompt. The answer has to be right."""
        answer = client.generate(prompt, max_tokens=NUM_ANSWER_TOKENS, temperature=0, ignore_eos=True)
        assert answer.choices[0].token_ids == self._answers[prompt]
        return answer.usage.cached_tokens

    def _prompts(self) -> list[Prompt]:
        """Of three families, each with a beginning in common."""
        beginnings = [self._tokens(30) for _ in range(3)]
        return [
            (*beginnings[number % 3], *self._tokens(self._random.randint(1, 40)))
            for number in range(NUM_PROMPTS)
        ]

    def _tokens(self, count: int) -> Sequence[int]:
        return [self._random.randint(3, 258) for _ in range(count)]


def greedy(model: PreTrainedModel, prompt: Prompt) -> tuple[int, ...]:
    """What the model answers, without cache or worker."""
    token_ids = list(prompt)
    for _ in range(NUM_ANSWER_TOKENS):
        token_ids.append(int(transformers_logits(model, token_ids)[-1].argmax()))
    return tuple(token_ids[len(prompt) :])
