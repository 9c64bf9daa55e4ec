"""Explanations for people: what is cached of a prompt, why not more, and what to do."""

from __future__ import annotations

from functools import partial

from prefixcache import Explanation, MissCause, PackedTokens, PrefixCache, unpack_tokens
from prefixcache.token_chunks import TOKEN_BYTES
from prefixcache.v1 import cache_pb2
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.errors import SchemeError
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.server.access.caller import Caller
from prefixcache_worker.server.off_loop import off_loop
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.explain import explain_query_from_proto

NOTHING_SHARED = "this worker shares nothing, so there is no cache to look into; use one with --scheme shared"

CONTEXT_TOKENS = 12
"""So many tokens before and behind the place where a prompt leaves what is cached make up a preview."""


async def explain(
    message: cache_pb2.ExplainRequest, *, caller: Caller, engine_loop: EngineLoop, model: ServedModel
) -> cache_pb2.ExplainResponse:
    """Raises InvalidRequestError, PermissionDeniedError, or SchemeError."""
    checked = partial(explain_query_from_proto, message, caller=caller, model=model)
    query = await off_loop(checked, num_bytes=message.ByteSize())
    explanation = await engine_loop.call(
        lambda engine: prefix_cache(engine).explain(
            query.tokens,
            query.namespace,
            num_public_tokens=query.num_public_tokens,
            tells_of_others=caller.is_admin,
        )
    )
    return explanation_to_proto(
        explanation, query.tokens, tells_of_others=caller.is_admin, tokenizer=model.tokenizer
    )


def prefix_cache(engine: Engine) -> PrefixCache:
    """The engine's cache. Raises SchemeError where nothing is shared."""
    if not isinstance(engine.cache, PrefixCache):
        raise SchemeError(NOTHING_SHARED)
    return engine.cache


def explanation_to_proto(
    explanation: Explanation, tokens: PackedTokens, *, tells_of_others: bool, tokenizer: Tokenizer
) -> cache_pb2.ExplainResponse:
    """The message of an explanation, which says who has more of the prompt only with `tells_of_others`."""
    response = cache_pb2.ExplainResponse(
        num_prompt_tokens=explanation.num_prompt_tokens,
        num_cached_tokens=explanation.num_cached_tokens,
        cause=f"MISS_CAUSE_{explanation.cause.name}",
        summary=summary(explanation),
    )
    if explanation.held_by is not None and tells_of_others:
        response.held_by_tenant = explanation.held_by.tenant
    if explanation.divergence is not None:
        position, prompt_token, cached_token = explanation.divergence
        same = _unpacked(tokens, max(0, position - CONTEXT_TOKENS), position)
        following = _unpacked(tokens, position, position + CONTEXT_TOKENS)
        cached = [*same, *explanation.cached_token_ids[:CONTEXT_TOKENS]]
        response.divergence.position = position
        response.divergence.prompt_token = prompt_token
        if cached_token is not None:
            response.divergence.cached_token = cached_token
        response.divergence.prompt_preview = tokenizer.decode([*same, *following], skip_special_tokens=False)
        response.divergence.cached_preview = tokenizer.decode(cached, skip_special_tokens=False)
    return response


def summary(explanation: Explanation) -> str:
    """One sentence: the numbers, the cause, and what to do."""
    num_cached, num_prompt = explanation.num_cached_tokens, explanation.num_prompt_tokens
    return f"{num_cached} of {num_prompt} prompt tokens are cached: {_cause_and_advice(explanation)}"


def _cause_and_advice(explanation: Explanation) -> str:
    position = explanation.num_cached_tokens
    holder = explanation.held_by
    match explanation.cause:
        case MissCause.NONE:
            return "all but the last, which is always computed; there is nothing to do"
        case MissCause.NEVER_SEEN if explanation.cached_token_ids:
            return (
                f"at token {position} it leaves every cached prompt; put what is always the same first, "
                "and what changes behind it"
            )
        case MissCause.NEVER_SEEN:
            return f"nothing that goes on so behind token {position} is remembered; send it once"
        case MissCause.EVICTED:
            return (
                f"what follows token {position} was cached until its blocks were needed; keep it as a "
                "prefix, give it a priority, or give the worker a larger pool"
            )
        case MissCause.EXPIRED:
            return (
                f"what follows token {position} was kept by a prefix or a priority until that ended; "
                "keep it for longer"
            )
        case MissCause.OTHER_TENANT:
            assert holder is not None
            return (
                f"tenant {holder.tenant!r} has {holder.num_tokens} for itself alone; let a publisher declare "
                "public what both send"
            )
        case MissCause.OTHER_SCOPE:
            assert holder is not None
            return (
                f"the tenant has {holder.num_tokens} under another salt, or as private what is declared "
                "public now; send equal salts, and declare the same tokens public"
            )
        case MissCause.OTHER_MODEL:
            assert holder is not None
            return f"{holder.num_tokens} are cached for another build of the model only; send it once"
        case MissCause.BELOW_BLOCK:
            return f"what follows token {position} is less than a block; there is little to gain"
        case MissCause.CACHE_OFF:
            return (
                f"what follows token {position} was computed by a request with the cache off; "
                "send it once with the cache on"
            )


def _unpacked(tokens: PackedTokens, start: int, end: int) -> list[int]:
    return list(unpack_tokens(tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]))
