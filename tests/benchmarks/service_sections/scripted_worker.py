"""A worker whose model costs next to nothing, in a process of its own: what it takes is the service's.

Run as a program it serves until SIGTERM, and prints where like `prefixcache serve`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[2]
NUM_SLOTS = 64


@contextmanager
def scripted_worker() -> Iterator[str]:
    """The address of a worker of 64 slots, that answers every request with up to 8,000 tokens."""
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


async def serve() -> None:
    import torch  # here: the parent needs none of this

    sys.path.insert(0, str(TESTS))  # for `support`, as pytest has it
    from support.tiny_loaded_model import EOS_ID, loaded

    from prefixcache_worker.config import WorkerConfig
    from prefixcache_worker.model.scripted_model import ScriptedModel
    from prefixcache_worker.server.build import assemble_worker
    from prefixcache_worker.server.service import Service

    torch.set_num_threads(1)
    script = [4 + i % 256 for i in range(8000)]
    model = ScriptedModel(script, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=16384)
    config = WorkerConfig(kv_blocks=600 * NUM_SLOTS, max_running=NUM_SLOTS)
    service = Service()
    address = service.bind("127.0.0.1:0")
    await service.start(assemble_worker(loaded(model), config))
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print(f"listening on {address}", flush=True)
    await stopping.wait()
    await service.stop(drain_seconds=0)


if __name__ == "__main__":
    asyncio.run(serve())
