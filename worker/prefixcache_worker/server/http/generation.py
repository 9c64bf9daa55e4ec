"""Chat answers and completions: from a call to the engine and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.request import Completion, Delta, PromptLogprobs, Request, Usage
from prefixcache_worker.engine.request_stream import RequestStream
from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.access.caller import Caller
from prefixcache_worker.server.generate_call import checked_request
from prefixcache_worker.server.http import chat_answers, completion_answers
from prefixcache_worker.server.http.bodies import ChatBody, CompletionBody
from prefixcache_worker.server.http.errors import HttpError, invalid_body
from prefixcache_worker.server.http.exchange import Exchange
from prefixcache_worker.server.http.json_body import parse_json
from prefixcache_worker.server.http.objects import (
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    CompletionChoice,
    PromptTokensDetails,
    TextCompletion,
    UsageObject,
)
from prefixcache_worker.server.http.to_proto import Translated, chat_to_proto, completion_to_proto
from prefixcache_worker.server.large_requests import LargeRequests, RequestRoom
from prefixcache_worker.server.off_loop import off_loop
from prefixcache_worker.server.request_record import RequestRecord
from prefixcache_worker.server.served_model import ServedModel

BodyT = TypeVar("BodyT", bound=BaseModel)
ChunkT = TypeVar("ChunkT", ChatChunkChoice, CompletionChoice)
T = TypeVar("T")


class Chunks(Protocol[ChunkT]):
    """The choices of one request, as the chunks of a stream."""

    def push(self, event: PromptLogprobs | Delta) -> list[ChunkT]: ...


class UsageField(TypedDict, total=False):
    """What a chunk says of the usage: nothing, unless the client asked for it; else null, until the end."""

    usage: UsageObject | None


class Envelope(NamedTuple):
    """What all chunks of an answer say of it."""

    id: str
    created: int
    model: str


class Running(NamedTuple):
    """A request under way."""

    translated: Translated
    request: Request
    stream: RequestStream
    record: RequestRecord


class Answering(NamedTuple, Generic[ChunkT]):
    """A request under way, and what its events become."""

    running: Running
    chunks: Chunks[ChunkT]

    async def events(self) -> AsyncIterator[list[ChunkT]]:
        """What to send, as it comes; what came while the last of it was sent is joined. Keeps the usage."""
        with self.running.translated.errors_in_body():
            async for event in self.running.stream.joined():
                if isinstance(event, Completion):
                    self.running.record.note_completion(event)
                else:
                    yield self.chunks.push(event)

    @property
    def usage(self) -> Usage:
        """What it cost. Requires: all its events have come."""
        assert self.running.record.usage is not None, "an answer ends with a completion"
        return self.running.record.usage


class Generation:
    """Answers the two calls that generate. Translates; decides nothing."""

    def __init__(
        self,
        *,
        engine_loop: EngineLoop,
        model: ServedModel,
        access: Access,
        admission: Admission,
        large_requests: LargeRequests,
    ) -> None:
        self._engine_loop = engine_loop
        self._model = model
        self._access = access
        self._admission = admission
        self._large_requests = large_requests

    async def chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions."""
        caller = self._access.caller(exchange.headers)
        with self._large_requests.room() as room:
            body = await self._body(exchange, room, ChatBody)
            await exchange.while_connected(self._chat(exchange, caller, body))

    async def completion(self, exchange: Exchange) -> None:
        """POST /v1/completions."""
        caller = self._access.caller(exchange.headers)
        with self._large_requests.room() as room:
            body = await self._body(exchange, room, CompletionBody)
            await exchange.while_connected(self._completion(exchange, caller, body))

    async def _chat(self, exchange: Exchange, caller: Caller, body: ChatBody) -> None:
        envelope = self._envelope("chatcmpl", exchange, body)
        translated = chat_to_proto(
            body, request_id=exchange.request_id, context_length=self._model.context_length
        )
        has_tools = bool(body.tools) and body.tool_choice != "none"
        async with self._running(exchange, caller, translated, method="chat.completions") as running:
            chunks = chat_answers.ChatChunks(running.request, self._model.tokenizer, has_tools=has_tools)
            answering = [Answering[ChatChunkChoice](running, chunks)]
            if body.stream:

                def chunk(choices: list[ChatChunkChoice], usage: UsageField) -> BaseModel:
                    return ChatChunk(
                        **envelope._asdict(), object="chat.completion.chunk", choices=choices, **usage
                    )

                await _stream(exchange, answering, chunk, include_usage=_includes_usage(body))
                return
            choices, usage = await _whole(answering)
        await exchange.reply(
            ChatCompletion(
                **envelope._asdict(),
                object="chat.completion",
                choices=[chat_answers.whole_choice(chunks) for chunks in choices],
                usage=usage,
            )
        )

    async def _completion(self, exchange: Exchange, caller: Caller, body: CompletionBody) -> None:
        envelope = self._envelope("cmpl", exchange, body)
        prompts = completion_to_proto(body, request_id=exchange.request_id)
        async with AsyncExitStack() as stack:
            answering: list[Answering[CompletionChoice]] = []
            for position, translated in enumerate(prompts):
                running = await stack.enter_async_context(
                    self._running(exchange, caller, translated, method="completions")
                )
                chunks = completion_answers.CompletionChunks(
                    running.request,
                    self._model.tokenizer,
                    first_index=position * running.request.num_choices,
                    echo=self._prompt_text(running.request) if body.echo else None,
                )
                answering.append(Answering(running, chunks))
            if body.stream:

                def chunk(choices: list[CompletionChoice], usage: UsageField) -> BaseModel:
                    return TextCompletion(
                        **envelope._asdict(), object="text_completion", choices=choices, **usage
                    )

                await _stream(exchange, answering, chunk, include_usage=_includes_usage(body))
                return
            choices, usage = await _whole(answering)
        await exchange.reply(
            TextCompletion(
                **envelope._asdict(),
                object="text_completion",
                choices=[completion_answers.whole_choice(chunks) for chunks in choices],
                usage=usage,
            )
        )

    @asynccontextmanager
    async def _running(
        self, exchange: Exchange, caller: Caller, translated: Translated, *, method: str
    ) -> AsyncIterator[Running]:
        """A request of the caller's, from before its prompt is read to its end."""
        admitted = self._admission.request(
            caller, exchange.headers, method=method, request_id=translated.message.request_id
        )
        async with admitted as record:
            with translated.errors_in_body():
                request = await checked_request(
                    translated.message, caller=caller, model=self._model, engine_loop=self._engine_loop
                )
                record.request, record.is_chat = request, translated.message.HasField("chat")
                stream = self._engine_loop.submit(request)
            async with stream:
                yield Running(translated, request, stream, record)

    async def _body(self, exchange: Exchange, room: RequestRoom, kind: type[BodyT]) -> BodyT:
        raw = await exchange.read_body(room)

        def parsed() -> BodyT:
            value = parse_json(raw)
            try:
                return kind.model_validate(value)
            except ValidationError as error:
                raise invalid_body(error, value) from error

        return await off_loop(parsed, num_bytes=len(raw))

    def _envelope(self, kind: str, exchange: Exchange, body: ChatBody | CompletionBody) -> Envelope:
        self.require_model(body.model)
        return Envelope(f"{kind}-{exchange.request_id}", int(time.time()), self._model.name)

    def require_model(self, name: str) -> None:
        """Raise HttpError unless the name is that of the one model."""
        if name != self._model.name:
            raise HttpError(
                404,
                "model_not_found",
                f"there is no model {name[:100]!r} here; this worker serves {self._model.name!r}",
                param="model",
            )

    def _prompt_text(self, request: Request) -> str:
        return self._model.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=True)


async def _stream(
    exchange: Exchange,
    answering: Sequence[Answering[ChunkT]],
    chunk: Callable[[list[ChunkT], UsageField], BaseModel],
    *,
    include_usage: bool,
) -> None:
    """Send the answers as they come. Nothing is read of them that the connection does not take yet."""
    # Waiting for the first event lets what is refused late still be refused with a status.
    has_begun = False
    sending = asyncio.Lock()
    absent: UsageField = {"usage": None} if include_usage else {}

    async def send(choice: ChunkT) -> None:
        nonlocal has_begun
        async with sending:
            if not has_begun:
                has_begun = True
                await exchange.begin_events()
            await exchange.send_event(chunk([choice], absent).model_dump_json(exclude_unset=True))

    async def forward(one: Answering[ChunkT]) -> None:
        async for choices in one.events():
            for choice in choices:
                await send(choice)

    await _all([forward(one) for one in answering])
    if include_usage:
        last = chunk([], {"usage": _usage_object([one.usage for one in answering])})
        await exchange.send_event(last.model_dump_json(exclude_unset=True))
    await exchange.send_event("[DONE]")
    await exchange.end_events()


async def _whole(answering: Sequence[Answering[ChunkT]]) -> tuple[list[list[ChunkT]], UsageObject]:
    """The chunks of every choice, in order of prompts and choices, and what they cost together."""
    by_index: dict[int, list[ChunkT]] = {}

    async def collect(one: Answering[ChunkT]) -> None:
        async for choices in one.events():
            for choice in choices:
                by_index.setdefault(choice.index, []).append(choice)

    await _all([collect(one) for one in answering])
    usage = _usage_object([one.usage for one in answering])
    return [by_index[index] for index in sorted(by_index)], usage


async def _all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run them to their ends. When one fails, the others are cancelled and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _includes_usage(body: ChatBody | CompletionBody) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _usage_object(usages: Sequence[Usage]) -> UsageObject:
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return UsageObject(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(usage.cached_tokens for usage in usages)),
    )
