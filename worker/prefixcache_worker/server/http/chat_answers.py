"""The choices of a chat answer, as chunks and as a whole."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from prefixcache_worker.engine.request import Delta, PromptLogprobs, Request
from prefixcache_worker.engine.request import FinishReason as EngineFinishReason
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.server.http.objects import (
    ChatAnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    FinishReason,
    FunctionDelta,
    FunctionObject,
    ToolCallDelta,
    ToolCallObject,
)
from prefixcache_worker.server.http.token_objects import chat_logprobs
from prefixcache_worker.server.http.tool_calls import CallArguments, CallBegin, Content, Piece, ToolCallParser


class ChatChunks:
    """The choices of one prompt, as the chunks of a stream."""

    def __init__(self, request: Request, tokenizer: Tokenizer, *, has_tools: bool) -> None:
        self._choices = [
            _Choice(index, tokenizer, has_tools=has_tools) for index in range(request.num_choices)
        ]

    def push(self, event: PromptLogprobs | Delta) -> list[ChatChunkChoice]:
        """What to send for more of the answer."""
        assert isinstance(event, Delta), "nobody asked for those of the prompt"
        return self._choices[event.index].push(event)


class _Choice:
    """One choice, as the chunks of a stream.

    The role comes first and alone, then texts and calls, then the finish reason with nothing else: clients
    drop a text that comes with a finish reason.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, *, has_tools: bool) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._parser = ToolCallParser() if has_tools else None
        self._has_begun = False

    def push(self, delta: Delta) -> list[ChatChunkChoice]:
        """What to send for more of the choice."""
        chunks: list[ChatChunkChoice] = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(self._chunk(ChatDelta(role="assistant", content="")))
        pieces = self._pieces(delta)
        logprobs = chat_logprobs(self._tokenizer, delta.token_ids, delta.logprobs) if delta.logprobs else None
        if logprobs is not None and not pieces:
            pieces = [Content("")]  # tokens whose text is held back, or nothing
        for piece in pieces:
            chunks.append(self._chunk(_delta(piece), logprobs))
            logprobs = None
        if delta.finish_reason is not None:
            reason = self._finish_reason(delta.finish_reason)
            chunks.append(ChatChunkChoice(index=self._index, delta=ChatDelta(), finish_reason=reason))
        return chunks

    def _pieces(self, delta: Delta) -> list[Piece]:
        if self._parser is None:
            return [Content(delta.text)] if delta.text else []
        pieces = self._parser.push(delta.text)
        return pieces if delta.finish_reason is None else [*pieces, *self._parser.finish()]

    def _finish_reason(self, reason: EngineFinishReason) -> FinishReason:
        has_called = self._parser is not None and self._parser.has_called
        if reason is EngineFinishReason.LENGTH:
            return "length"
        return "tool_calls" if has_called else "stop"

    def _chunk(self, delta: ChatDelta, logprobs: ChatLogprobs | None = None) -> ChatChunkChoice:
        if logprobs is None:
            return ChatChunkChoice(index=self._index, delta=delta, finish_reason=None)
        return ChatChunkChoice(index=self._index, delta=delta, logprobs=logprobs, finish_reason=None)


def whole_choice(chunks: Sequence[ChatChunkChoice]) -> ChatChoice:
    """The choice that all its chunks are, the last of which has its finish reason."""
    reason = chunks[-1].finish_reason
    assert reason is not None
    content = "".join(chunk.delta.content or "" for chunk in chunks)
    scored = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    calls: list[ToolCallObject] = []
    for call in (call for chunk in chunks for call in chunk.delta.tool_calls or ()):
        if call.id is not None:
            assert call.function.name is not None
            calls.append(
                ToolCallObject(
                    id=call.id,
                    type="function",
                    function=FunctionObject(name=call.function.name, arguments=""),
                )
            )
        calls[call.index].function.arguments += call.function.arguments
    return ChatChoice(
        index=chunks[-1].index,
        message=_message(content, calls),
        logprobs=_joined(scored),
        finish_reason=reason,
    )


def _message(content: str, calls: list[ToolCallObject]) -> ChatAnswerMessage:
    if not calls:
        return ChatAnswerMessage(role="assistant", content=content, refusal=None)
    return ChatAnswerMessage(role="assistant", content=content or None, refusal=None, tool_calls=calls)


def _joined(parts: list[ChatLogprobs]) -> ChatLogprobs | None:
    if not parts:
        return None
    return ChatLogprobs(content=[token for part in parts for token in part.content], refusal=None)


def _delta(piece: Piece) -> ChatDelta:
    match piece:
        case Content(text=text):
            return ChatDelta(content=text)
        case CallBegin(index=index, name=name):
            call = ToolCallDelta(
                index=index,
                id=f"call_{uuid.uuid4().hex}",
                type="function",
                function=FunctionDelta(name=name, arguments=""),
            )
        case CallArguments(index=index, text=text):
            call = ToolCallDelta(index=index, function=FunctionDelta(arguments=text))
    return ChatDelta(tool_calls=[call])
