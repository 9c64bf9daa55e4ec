"""A real worker process over a tiny checkpoint, and what can be seen of it from outside."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil
from support.tiny_checkpoint import save_tiny_checkpoint, tiny_transformers_model

from prefixcache_client.worker_process import WorkerProcess

READY_SECONDS = 120.0
_HTTP_LINE = "OpenAI-compatible HTTP on "
_CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


class Footprint(NamedTuple):
    """What a process has of the machine."""

    resident_bytes: int
    num_open_files: int
    num_threads: int


def tiny_model_folder(path: Path) -> Path:
    """A checkpoint that loads in no time and computes a token in a millisecond, and takes part in chats."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "chat_template.jinja").write_text(_CHAT_TEMPLATE)
    return save_tiny_checkpoint(path, tiny_transformers_model())


def process_worker(model: Path, *arguments: str) -> WorkerProcess:
    """A worker of this checkpoint, with one thread; start it with `with`."""
    # glibc would give each thread an arena of its own, which is not what a leak looks like.
    environment = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    return WorkerProcess(
        "--model", str(model), "--num-threads", "1", "--attention", "torch", *arguments,
        environment=environment,
    )  # fmt: skip


def http_address(worker: WorkerProcess) -> str:
    """Of the HTTP door. Requires: ready, with --http-address."""
    [line] = [line for line in worker.output_lines if line.startswith(_HTTP_LINE)]
    return line.removeprefix(_HTTP_LINE).removeprefix("http://").removesuffix("/v1")


def footprint(worker: WorkerProcess) -> Footprint:
    """What the process has now."""
    process = psutil.Process(worker.process_id)
    return Footprint(
        resident_bytes=int(process.memory_info().rss),
        num_open_files=process.num_fds(),
        num_threads=process.num_threads(),
    )
