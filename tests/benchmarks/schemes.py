"""The founding comparison: preallocated, paged, shared and quantised KV on one load with the same memory.

Two loads: prompts with a long common beginning, and prompts without one whose 512 tokens of a context of
2,048 leave three quarters of what is preallocated empty. Then block sizes, and the first request of all.

Usage: schemes.py [--rounds 3] [--picture FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from report import Row, print_rows

from prefixcache_client.command_line.main import main as prefixcache

SHARED_LOAD = ("--prefix", "1024", "--suffix", "64", "--output", "64")
UNSHARED_LOAD = ("--prefix", "0", "--suffix", "384", "--output", "128")
BLOCK_SIZES = ("1", "16", "32", "64", "256")


def compare(*arguments: str) -> dict[str, Any]:
    """Run the command; what it writes as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schemes.json"
        assert prefixcache(["schemes", *arguments, "--json", str(path)]) == 0
        return json.loads(path.read_text())


def batch_rows(result: dict[str, Any], load: str, label: str) -> list[Row]:
    """Four figures for each batch of each scheme; `label` makes its name."""
    rows = []
    for scheme in result["schemes"]:
        name = label.format(**scheme)
        for batch in scheme["batches"]:
            speeds, waits = batch["tokens_per_second"], batch["first_token_seconds"]
            put_back = f", {batch['num_preemptions']} put back" if batch["num_preemptions"] else ""
            rows.append(
                Row(
                    name=f"{load}, {name}, {batch['batch']} at once",
                    value=statistics.median(speeds),
                    unit="tokens/s",
                    spread=f"{min(speeds):.1f} to {max(speeds):.1f}",
                    note=f"first token {statistics.median(waits):.2f} s, "
                    f"{batch['num_running']} ran{put_back}, "
                    f"{batch['kv_bytes_per_request'] / 2**20:.1f} MiB each, "
                    f"{100 * batch['wasted_share']:.1f} % wasted",
                )
            )
    return rows


def fit_rows(result: dict[str, Any], load: str) -> list[Row]:
    """How many requests fit, and how many were seen to."""
    largest = max(batch["batch"] for batch in result["schemes"][0]["batches"])
    return [
        Row(
            name=f"{load}, {scheme['name']}: requests that fit {scheme['pool_bytes'] / 2**20:.0f} MiB",
            value=scheme["num_fit"],
            unit="requests",
            bar=f"the first {min(scheme['num_fit'], largest)} seen to run together",
            holds=scheme["num_seen_to_fit"] >= min(scheme["num_fit"], largest),
        )
        for scheme in result["schemes"]
    ]


def ratio_rows(result: dict[str, Any], load: str, scheme: str, baseline: str) -> list[Row]:
    """Throughput of one scheme over another's, in pairs of the same round."""
    by_name = {row["name"]: row["batches"] for row in result["schemes"]}
    rows = []
    for ours, theirs in zip(by_name[scheme], by_name[baseline], strict=True):
        ratios = [a / b for a, b in zip(ours["tokens_per_second"], theirs["tokens_per_second"], strict=True)]
        rows.append(
            Row(
                name=f"{load}, {scheme} over {baseline}, {ours['batch']} at once",
                value=statistics.median(ratios),
                unit="times the tokens/s",
                spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
            )
        )
    return rows


def first_request_row(result: dict[str, Any]) -> Row:
    """The first request that a worker ever had, over later ones on prompts as cold."""
    ratios = [
        scheme["first_request_seconds"] / statistics.median(scheme["batches"][0]["first_token_seconds"])
        for scheme in result["schemes"]
    ]
    return Row(
        name="first token of a worker's first request over later cold ones",
        value=statistics.median(ratios),
        unit="ratio",
        spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
        note=f"{len(ratios)} workers; pool and kernels are made at start",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", default="3")
    parser.add_argument("--picture", metavar="FILE", help="draw the first comparison there")
    parser.add_argument("--json")
    args = parser.parse_args()
    rounds = ("--rounds", args.rounds)
    picture = ("--picture", args.picture) if args.picture else ()
    shared = compare(*SHARED_LOAD, *rounds, *picture)
    unshared = compare(*UNSHARED_LOAD, *rounds, "--schemes", "contiguous", "paged", "shared")
    sweep = compare(*SHARED_LOAD, *rounds, "--block-sizes", *BLOCK_SIZES, "--batch", "8")
    rows = [
        *fit_rows(shared, "1,024 in common"),
        *batch_rows(shared, "1,024 in common", "{name}"),
        *ratio_rows(shared, "1,024 in common", "paged", "contiguous"),
        *ratio_rows(shared, "1,024 in common", "shared", "paged"),
        *fit_rows(unshared, "512 alone"),
        *batch_rows(unshared, "512 alone", "{name}"),
        *ratio_rows(unshared, "512 alone", "paged", "contiguous"),
        *ratio_rows(unshared, "512 alone", "shared", "paged"),
        *batch_rows(sweep, "1,024 in common", "blocks of {block_size} (table of {num_table_blocks})"),
        first_request_row(shared),
    ]
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
