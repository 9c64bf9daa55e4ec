"""The page of metrics behind the HTTP door."""

from __future__ import annotations

from support.http_worker import http_served, refusal
from support.named_callers import NamedCallers, caller_headers
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_worker.server.access.caller import Role


async def test_admins_read_what_both_doors_have_done():
    async with http_served(loaded(tiny_decoder()), access=NamedCallers()) as worker:
        as_user, as_admin = caller_headers("shop"), caller_headers("shop", Role.ADMIN)
        answer = await worker.client.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": "hello", "max_tokens": 3, "temperature": 0, "ignore_eos": True},
            headers=as_user,
        )
        assert answer.status_code == 200
        page = await worker.client.get("/metrics", headers=as_admin)
        refusal(await worker.client.get("/metrics", headers=as_user), 403)
        refusal(await worker.client.get("/metrics"), 401)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain; version=")
    lines = page.text.splitlines()
    assert "prefixcache_generated_tokens_total 3.0" in lines
    assert 'prefixcache_requests_total{outcome="finished"} 1.0' in lines
    assert "prefixcache_time_to_first_token_seconds_count 1.0" in lines
    [answers] = [line for line in lines if line.startswith("prefixcache_answers_total")]
    assert answers.startswith('prefixcache_answers_total{code="OK",method="')
    assert answers.endswith(" 1.0")
    assert 'prefixcache_tenant_generated_tokens_total{tenant="shop"} 3.0' in lines
