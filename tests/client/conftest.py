"""What the client's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fake_worker import FakeWorker


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    """A fake worker on a loopback port."""
    with FakeWorker() as fake:
        yield fake
