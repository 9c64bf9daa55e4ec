"""AIPerf as a witness: the same trace through it and through `prefixcache bench`, each on a fresh worker.

    python -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf==0.13.0
    python tests/benchmarks/witnesses/aiperf.py --aiperf /tmp/aiperf/bin/aiperf

Both send prompts of text to our HTTP door at the moments of the trace, which has Mooncake's format. The texts
differ, since each makes its own; which blocks they share, and their lengths, do not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from agreement import agreement_rows, bench
from report import print_rows
from steady_worker import steady_worker

MODEL = "witness"
_BLOCK_TOKENS = 512


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare AIPerf's figures with ours.")
    parser.add_argument("--aiperf", default="aiperf", help="the program (default: the one on the PATH)")
    parser.add_argument("--requests", type=int, default=80, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=4.0, help="a second, on average (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "trace.jsonl"
        write_tokenizer(folder / "home")
        write_trace(trace, arguments.requests, arguments.rate)
        rounds = []
        for _ in range(arguments.rounds):
            with steady_worker() as worker:
                target = f"--target=http://{worker.http}"
                ours = bench("trace", f"--trace={trace}", "--prompt-form=text", target, folder=folder)
            with steady_worker() as worker:
                rounds.append((ours, aiperf(arguments.aiperf, trace, worker.http, folder)))
    print_rows(agreement_rows(rounds, witness="AIPerf"), arguments.json)


def write_trace(path: Path, num_requests: int, rate: float) -> None:
    """Requests at random moments; each begins with one of eight prefixes, of one to three blocks."""
    draw = random.Random(2026)
    prefixes = [[8 * block + number for block in range(1 + number % 3)] for number in range(8)]
    moment = 0.0
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_requests):
            prefix = draw.choice(prefixes)
            own_tokens = draw.randint(64, 512)
            request = {
                "timestamp": round(1000 * moment),
                "input_length": _BLOCK_TOKENS * len(prefix) + own_tokens,
                "output_length": draw.randint(16, 48),
                "hash_ids": [*prefix, 1000 + number],
            }
            file.write(json.dumps(request) + "\n")
            moment += draw.expovariate(rate)


def aiperf(program: str, trace: Path, address: str, folder: Path) -> dict[str, float]:
    """Its figures, by the names of ours."""
    home, artifacts = folder / "home", folder / "artifacts"
    shutil.rmtree(artifacts, ignore_errors=True)
    subprocess.run(
        [
            *(program, "profile"),
            *("--model", "tiny", "--url", f"http://{address}"),
            *("--endpoint-type", "completions", "--streaming"),
            *("--input-file", str(trace), "--custom-dataset-type", "mooncake_trace", "--fixed-schedule"),
            *("--tokenizer", f"local/{MODEL}", "--use-server-token-count"),
            *("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
            *("--output-artifact-dir", str(artifacts), "--ui", "none"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "1",
        },
    )
    (report,) = artifacts.rglob("profile_export_aiperf.json")
    figures = json.loads(report.read_text(encoding="utf-8"))
    milliseconds = 1e-3
    return {
        "requests": figures["request_count"]["avg"],
        "requests/s": figures["request_throughput"]["avg"],
        "output tokens/s": figures["output_token_throughput"]["avg"],
        "prompt tokens": figures["total_usage_prompt_tokens"]["avg"],
        "first token, mean s": figures["time_to_first_token"]["avg"] * milliseconds,
        "first token, p90 s": figures["time_to_first_token"]["p90"] * milliseconds,
        "time per token, mean s": figures["inter_token_latency"]["avg"] * milliseconds,
        "end to end, mean s": figures["request_latency"]["avg"] * milliseconds,
        "end to end, p90 s": figures["request_latency"]["p90"] * milliseconds,
        "cached share": figures["overall_usage_prompt_cache_read_pct"]["avg"] / 100,
    }


def write_tokenizer(home: Path) -> None:
    """The default model's tokenizer where AIPerf looks for it without a network."""
    from prefixcache_worker.model.config_gguf import config_from_gguf
    from prefixcache_worker.model.default_model import default_model_path
    from prefixcache_worker.model.gguf_file import GgufFile
    from prefixcache_worker.model.tokenizer_files import tokenizer_from_gguf

    file = GgufFile(default_model_path())
    tokenizer = tokenizer_from_gguf(file.metadata, config_from_gguf(file), source=file.description)
    folder = home / "hub" / f"models--local--{MODEL}"
    snapshot = folder / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1", encoding="utf-8")
    (snapshot / "tokenizer.json").write_text(tokenizer._backend.to_str(), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (snapshot / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (snapshot / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")


if __name__ == "__main__":
    main()
