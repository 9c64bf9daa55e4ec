"""A worker whose steps take a time that is known, so that whoever puts the same load on it sees the same.

Both doors, our whole worker and the default model's tokenizer are real. The model is a tiny one that says one
word, and waits until a step has taken `STEP_SECONDS` and `SECONDS_PER_TOKEN` for each token computed.

Run as a program, it serves until its standard input ends, and says first where, as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

STEP_SECONDS = 0.04
SECONDS_PER_TOKEN = 0.0001


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a steady worker listens: HOST:PORT."""

    http: str
    grpc: str


@contextmanager
def steady_worker() -> Iterator[Addresses]:
    """A fresh one, with an empty cache, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Addresses(**json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(timeout=30)


async def _serve() -> None:
    import torch
    from support.delegating_model import DelegatingModel
    from support.http_worker import http_served
    from support.tiny_loaded_model import loaded
    from support.tiny_model import tiny_decoder

    from prefixcache_worker.model.config_gguf import config_from_gguf
    from prefixcache_worker.model.default_model import default_model_path
    from prefixcache_worker.model.gguf_file import GgufFile
    from prefixcache_worker.model.model import ForwardBatch, StepAttention
    from prefixcache_worker.model.tokenizer_files import tokenizer_from_gguf

    torch.set_num_threads(1)
    file = GgufFile(default_model_path())
    config = config_from_gguf(file)
    tokenizer = tokenizer_from_gguf(file.metadata, config, source=file.description)
    (word,) = tokenizer.encode(" the", add_special=False)

    class SteadyModel(DelegatingModel):
        def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
            due = time.perf_counter() + STEP_SECONDS + SECONDS_PER_TOKEN * len(batch.token_ids)
            logits = super().forward(batch, attention)
            logits[:, word] = 1e9
            time.sleep(max(0.0, due - time.perf_counter()))
            return logits

    tiny = tiny_decoder(
        vocabulary_size=config.vocabulary_size, context_length=config.context_length, num_layers=1
    )
    model = replace(loaded(SteadyModel(tiny)), tokenizer=tokenizer)
    async with http_served(model, kv_blocks=16_384) as worker:
        print(json.dumps({"http": worker.address, "grpc": worker.grpc_address}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # for `support`, as pytest has it
    asyncio.run(_serve())
