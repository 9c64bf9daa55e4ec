"""`prefixcache schemes` with real workers on a tiny model: every figure that does not depend on the clock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tiny_checkpoint import save_tiny_checkpoint, tiny_transformers_model

from prefixcache_client.command_line import main as command_line

BLOCK_BYTES = 2 * 2 * 16 * 2 * 8 * 4
"""Keys and values, layers, slots, KV heads, head size, float32."""
POOL_BLOCKS = 40
QUANTISED_BLOCK_BYTES = BLOCK_BYTES // 4 + 2 * 2 * 16 * 2 * 2
"""One byte for four, and for each layer, slot and head a scale of two bytes for keys and one for values."""
ALL = ("contiguous", "paged", "shared", "shared-int8")


@pytest.fixture(scope="module")
def schemes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One run: prompts of 64 + 16 and answers of 49 tokens, so 8 blocks of a context of 16; by scheme."""
    folder = tmp_path_factory.mktemp("schemes")
    model = save_tiny_checkpoint(folder, tiny_transformers_model())
    status = command_line.main(
        [
            *("schemes", "--model", str(model), "--schemes", *ALL),
            *("--prefix", "64", "--suffix", "16", "--output", "49", "--context-length", "256"),
            *("--kv-memory", str(POOL_BLOCKS * BLOCK_BYTES), "--batch", "1", "3", "--rounds", "2"),
            *("--json", str(folder / "schemes.json"), "--", "--num-threads", "1"),
        ]
    )
    assert status == 0
    return {row["name"]: row for row in json.loads((folder / "schemes.json").read_text())["schemes"]}


def test_all_have_the_same_memory(schemes):
    block_bytes = {name: row["pool_bytes"] / row["num_blocks"] for name, row in schemes.items()}
    assert block_bytes == dict.fromkeys(ALL, BLOCK_BYTES) | {"shared-int8": QUANTISED_BLOCK_BYTES}
    for row in schemes.values():
        spare = POOL_BLOCKS * BLOCK_BYTES - row["pool_bytes"]
        assert 0 <= spare < row["pool_bytes"] / row["num_blocks"]
    assert {row["num_table_blocks"] for row in schemes.values()} == {8}


def test_how_many_requests_fit(schemes):
    """16 blocks each, 8 each, and 4 for all with 4 each."""
    num_small_blocks = POOL_BLOCKS * BLOCK_BYTES // QUANTISED_BLOCK_BYTES
    assert {name: row["num_fit"] for name, row in schemes.items()} == {
        "contiguous": 40 // 16,
        "paged": 40 // 8,
        "shared": (40 - 4) // 4,
        "shared-int8": (num_small_blocks - 4) // 4,
    }


def test_what_one_request_holds_and_wastes(schemes):
    """128 rows: all of 8 blocks, and half of the 16 that are reserved for the whole context."""
    alone = {name: row["batches"][0] for name, row in schemes.items()}
    assert {name: row["kv_bytes_per_request"] for name, row in alone.items()} == {
        "contiguous": 16 * BLOCK_BYTES,
        "paged": 8 * BLOCK_BYTES,
        "shared": 8 * BLOCK_BYTES,
        "shared-int8": 8 * QUANTISED_BLOCK_BYTES,
    }
    wasted = {name: row["wasted_share"] for name, row in alone.items()}
    assert wasted == dict.fromkeys(ALL, 0) | {"contiguous": 0.5}


def test_no_more_are_preallocated_than_fit_and_nobody_gives_way(schemes):
    _, three = schemes["contiguous"]["batches"]
    assert three["batch"] == 3
    assert three["num_running"] <= 2
    assert three["num_preemptions"] == 0
    assert three["kv_bytes_per_request"] == 16 * BLOCK_BYTES


def test_every_round_is_timed(schemes):
    for scheme in schemes.values():
        for row in scheme["batches"]:
            assert len(row["tokens_per_second"]) == len(row["first_token_seconds"]) == 2
            assert all(value > 0 for value in (*row["tokens_per_second"], *row["first_token_seconds"]))
        assert scheme["first_request_seconds"] > 0
