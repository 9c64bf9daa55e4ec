"""How likely tokens were, in OpenAI's two forms."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from prefixcache_worker.engine.request import TokenLogprobs
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.server.http.objects import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token for people: its text, `bytes:\\xf0\\x9f` where it is no UTF-8, its name if it is special."""
    token_bytes = tokenizer.token_bytes(token_id)
    try:
        return token_bytes.decode() or tokenizer.decode([token_id], skip_special_tokens=False)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], scores: Sequence[TokenLogprobs]
) -> ChatLogprobs:
    """The form of chat answers."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_top(tokenizer, token_id, score.logprob).model_dump(),
                top_logprobs=[
                    _top(tokenizer, top_id, logprob)
                    for top_id, logprob in zip(score.top_token_ids, score.top_logprobs, strict=True)
                ],
            )
            for token_id, score in zip(token_ids, scores, strict=True)
        ],
        refusal=None,
    )


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    return TopLogprob(
        token=token_text(tokenizer, token_id), logprob=logprob, bytes=list(tokenizer.token_bytes(token_id))
    )


class CompletionScores:
    """The form of completions: lists over tokens, and where in the text each token begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def push(self, token_ids: Iterable[int], scores: Iterable[TokenLogprobs | None]) -> CompletionLogprobs:
        """The next tokens; None is the score of the first token of a prompt."""
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, score in zip(token_ids, scores, strict=True):
            text = token_text(self._tokenizer, token_id)
            result.tokens.append(text)
            result.text_offset.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
            if score is None:
                result.token_logprobs.append(None)
                result.top_logprobs.append(None)
                continue
            result.token_logprobs.append(score.logprob)
            top = {
                token_text(self._tokenizer, top_id): logprob
                for top_id, logprob in zip(score.top_token_ids, score.top_logprobs, strict=True)
            }
            result.top_logprobs.append(top | {text: score.logprob})
        return result
