"""Which requests could never run here, however long they waited."""

from __future__ import annotations

from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.request import Request
from prefixcache_worker.errors import InvalidRequestError


def check_admissible(request: Request, config: EngineConfig, *, max_total_tokens: int) -> None:
    """Raise InvalidRequestError if the request could never run. `max_total_tokens`: the engine's."""
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens == 0:
        raise InvalidRequestError("prompt", "it has no tokens; send at least one")
    if num_prompt_tokens >= max_total_tokens:
        limit = "context length" if max_total_tokens == config.context_length else "KV pool"
        raise InvalidRequestError(
            "prompt",
            f"it has {num_prompt_tokens} tokens, and the {limit} of {max_total_tokens} must hold "
            "it and one token of the answer; shorten the prompt",
        )
    if request.num_choices > config.max_running:
        raise InvalidRequestError(
            "n", f"{request.num_choices} answers, but at most {config.max_running} can run at once"
        )
