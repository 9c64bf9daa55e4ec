"""Kept prefixes in front of what comes by HTTP."""

from __future__ import annotations

from support.http_worker import http_served, refusal
from support.tiny_loaded_model import byte_tokenizer, loaded
from support.tiny_model import tiny_decoder

from prefixcache import Namespace, pack_tokens
from prefixcache_worker.engine.prefix_book import PrefixOrder
from prefixcache_worker.server.grpc.prefix_calls import create_prefix

POLICY = "You are a support agent. Tickets can be refunded within a day."


async def test_a_completion_goes_on_behind_a_prefix() -> None:
    async with http_served(loaded(tiny_decoder(vocabulary_size=300))) as worker:
        order = PrefixOrder(
            namespace=Namespace(model="tiny-build", tenant="default"),
            tokens=pack_tokens(byte_tokenizer().encode(POLICY, add_special=False)),
        )
        created = await create_prefix(order, "make", engine_loop=worker.worker.engine_loop)

        answer = await worker.complete(" Q: why?", prefix_id=created.prefix.prefix_id, max_tokens=3)
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] == len(POLICY) + len(" Q: why?")
        assert usage["prompt_tokens_details"]["cached_tokens"] == len(POLICY)

        unknown = refusal(await worker.complete("hi", prefix_id="nobody's"), 404)
        assert "there is no prefix" in unknown["message"]
