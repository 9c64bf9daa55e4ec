"""The real process among clients that leave, read slowly, or send what nobody should."""

from __future__ import annotations

from pathlib import Path

from support.client_faults import ClientFaults, Counts
from support.process_worker import tiny_model_folder


def test_nothing_is_left_of_bad_clients(tmp_path: Path):
    """With keys, tenants, a tier and a snapshot; what has to hold is checked by `run`."""
    faults = ClientFaults(tmp_path, tiny_model_folder(tmp_path / "model"), seed=1, is_full=True)
    report = faults.run(Counts(calls=400, slow=40, hostile=150))
    kinds = " ".join(report.tally.endings)
    for ending in ("grpc stay: answered", "http stay: answered", "SLOW_READER", "INVALID_ARGUMENT", "401"):
        assert ending in kinds
    assert report.stats.requests.preemptions
    assert report.stats.blocks.evicted
