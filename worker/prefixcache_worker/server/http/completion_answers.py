"""The choices of a text completion, as chunks and as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache_worker.engine.request import Delta, FinishReason, PromptLogprobs, Request
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.server.http.objects import CompletionChoice, CompletionLogprobs
from prefixcache_worker.server.http.token_objects import CompletionScores


class CompletionChunks:
    """The choices of one prompt, as the chunks of a stream: texts first, then the finish reason alone.

    With `echo`, the text of each choice begins with the prompt.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, *, first_index: int, echo: str | None) -> None:
        """`first_index`: how many choices the prompts before this one have. `echo`: the prompt's text."""
        self._request = request
        self._first_index = first_index
        self._echo = echo
        self._scores = [CompletionScores(tokenizer) for _ in range(request.num_choices)]
        self._prompt_scores: list[PromptLogprobs] = []
        self._begun: set[int] = set()

    def push(self, event: PromptLogprobs | Delta) -> list[CompletionChoice]:
        """What to send for more of the answer. What is told of the prompt begins every choice."""
        if isinstance(event, PromptLogprobs):
            self._prompt_scores.append(event)
            return []
        return self._push(event)

    def _push(self, delta: Delta) -> list[CompletionChoice]:
        chunks: list[CompletionChoice] = []
        scores = self._scores[delta.index]
        if self._echo is not None and delta.index not in self._begun:
            self._begun.add(delta.index)
            logprobs = None
            if self._prompt_scores:
                of_prompt = [score for part in self._prompt_scores for score in part.logprobs]
                logprobs = scores.push(self._request.prompt_token_ids, of_prompt)
            chunks.append(self._chunk(delta.index, self._echo, logprobs))
        logprobs = scores.push(delta.token_ids, delta.logprobs) if delta.logprobs else None
        if delta.text or logprobs is not None:
            chunks.append(self._chunk(delta.index, delta.text, logprobs))
        if delta.finish_reason is not None:
            chunks.append(self._chunk(delta.index, "", None, delta.finish_reason))
        return chunks

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        finish_reason: FinishReason | None = None,
    ) -> CompletionChoice:
        return CompletionChoice(
            index=self._first_index + index,
            text=text,
            logprobs=logprobs,
            finish_reason=None if finish_reason is None else finish_reason.value,
        )


def whole_choice(chunks: Sequence[CompletionChoice]) -> CompletionChoice:
    """The choice that all its chunks are, the last of which has its finish reason."""
    scored = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    logprobs = None
    if scored:
        logprobs = CompletionLogprobs(
            tokens=[token for part in scored for token in part.tokens],
            token_logprobs=[logprob for part in scored for logprob in part.token_logprobs],
            top_logprobs=[top for part in scored for top in part.top_logprobs],
            text_offset=[offset for part in scored for offset in part.text_offset],
        )
    return CompletionChoice(
        index=chunks[-1].index,
        text="".join(chunk.text for chunk in chunks),
        logprobs=logprobs,
        finish_reason=chunks[-1].finish_reason,
    )
