"""Every bound on an ExplainRequest."""

from __future__ import annotations

from typing import NamedTuple

from prefixcache import Namespace, PackedTokens, pack_tokens
from prefixcache.v1 import cache_pb2
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.generate import check_cache_options
from prefixcache_worker.server.validation.prompts import num_public_tokens, prompt_token_ids


class ExplainQuery(NamedTuple):
    """A prompt, and in whose name it would be sent."""

    tokens: PackedTokens
    namespace: Namespace
    num_public_tokens: int


def explain_query_from_proto(
    message: cache_pb2.ExplainRequest, *, caller: Caller, model: ServedModel
) -> ExplainQuery:
    """What a message asks about: Generate would take the same prompt with the same cache options.

    Raises InvalidRequestError, or PermissionDeniedError when the caller may declare nothing public.
    """
    check_cache_options(message)
    token_ids = prompt_token_ids(message, model)
    num_public = num_public_tokens(message, token_ids, model)
    if num_public:
        caller.require(Role.PUBLISHER, "declaring tokens public")
    namespace = caller.namespace(model.build, salt=message.cache.salt)
    return ExplainQuery(pack_tokens(token_ids), namespace, num_public)
