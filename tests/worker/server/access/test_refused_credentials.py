"""Callers without a key are seen by operators, and what they sent is not."""

from __future__ import annotations

import logging

import pytest
from support.http_worker import http_served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_worker.errors import UnauthenticatedError
from prefixcache_worker.server.access.access import KeyAccess
from prefixcache_worker.server.access.api_keys import KeyRing, make_key
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.refused_credentials import LOG_SECONDS, WatchedAccess

KEY, STORED = make_key(tenant="shop", role=Role.ADMIN, label="", created="")
WRONG = KEY[:-4] + "beef"
NAME = "prefixcache_worker.server.access.refused_credentials"


def test_however_many_come_the_log_has_a_line_in_ten_seconds(caplog: pytest.LogCaptureFixture):
    now, num_counted = 0.0, 0

    def count() -> None:
        nonlocal num_counted
        num_counted += 1

    access = WatchedAccess(KeyAccess(lambda: KeyRing([STORED])), count=count, clock=lambda: now)
    with caplog.at_level(logging.DEBUG):
        for step in range(100):
            now = step * LOG_SECONDS / 50
            with pytest.raises(UnauthenticatedError):
                access.caller([("authorization", f"Bearer {WRONG}")])
            assert access.caller([("authorization", f"Bearer {KEY}")]).tenant == "shop"
    assert num_counted == 100
    told = [record.getMessage() for record in caplog.records if record.name == NAME]
    assert [line.split(";")[0].split()[-1] for line in told] == ["1", "50"]
    assert "beef" not in caplog.text


async def test_calls_without_a_key_are_on_the_metrics_page():
    access = KeyAccess(lambda: KeyRing([STORED]))
    async with http_served(loaded(tiny_decoder()), access=access) as worker:
        for path in ("/v1/models", "/v1/models/tiny", "/metrics"):
            assert (await worker.client.get(path)).status_code == 401
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer = await worker.client.post(path, headers={"authorization": f"Bearer {WRONG}"}, json={})
            assert answer.status_code == 401
        page = await worker.client.get("/metrics", headers={"authorization": f"Bearer {KEY}"})
    assert "\nprefixcache_refused_credentials_total 5.0\n" in page.text
    assert "beef" not in page.text
