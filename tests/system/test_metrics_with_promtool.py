"""The page of metrics as Prometheus's own tool sees it: a Debian package, which `make test-system` gets."""

from __future__ import annotations

import subprocess

from support.metrics_page import busy_worker


async def test_promtool_finds_nothing_in_the_page():
    async with busy_worker() as worker:
        page = await worker.worker.metrics.page()
    checked = subprocess.run(
        ["promtool", "check", "metrics", "--extended"], input=page.body, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
    assert b"prefixcache_block_residency_seconds" in checked.stdout


async def test_promtool_finds_names_that_are_wrong():
    """So that nothing found is worth something."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=b"# TYPE wrong counter\nwrong 1\n",
        capture_output=True,
        timeout=60,
    )
    assert checked.returncode != 0
    assert b"_total" in checked.stderr
