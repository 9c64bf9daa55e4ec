"""prefixcache.v1.InferenceService over the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import grpc

from prefixcache.v1 import inference_pb2, inference_pb2_grpc
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.request import (
    AnswerEvent,
    Completion,
    Delta,
    FinishReason,
    PromptLogprobs,
    TokenLogprobs,
)
from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.generate_call import checked_request
from prefixcache_worker.server.grpc.grpc_call import authorised, deadline_of, metadata_of, send_request_id
from prefixcache_worker.server.off_loop import off_loop
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.generate import request_id_to_abort
from prefixcache_worker.server.validation.prompts import token_ids_from_detokenize, token_ids_from_tokenize

MAX_SCORES_PER_MESSAGE = 1024
"""So many scored prompt tokens go into one message: about 250 KiB with all their rivals."""

_FINISH_REASONS = {
    None: inference_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Translates between messages and the engine; decides nothing."""

    def __init__(
        self, *, engine_loop: EngineLoop, model: ServedModel, access: Access, admission: Admission
    ) -> None:
        self._engine_loop = engine_loop
        self._model = model
        self._access = access
        self._admission = admission

    # A coroutine that writes, not a generator: when the client goes away, the cancellation is raised
    # here at once. A generator would stay suspended at its yield until it is collected.
    async def Generate(  # type: ignore[override]
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[Any, inference_pb2.GenerateResponse],
    ) -> None:
        """Stream the answer. A client that goes away or runs out of time cancels its request."""
        async with (
            authorised(context, self._access) as caller,
            self._admission.request(
                caller, metadata_of(context), method="Generate", request_id=request.request_id
            ) as record,
        ):
            request.request_id = record.request_id
            deadline = deadline_of(context)
            checked = await checked_request(
                request, caller=caller, model=self._model, engine_loop=self._engine_loop
            )
            record.request, record.is_chat = checked, request.HasField("chat")
            async with self._engine_loop.submit(checked, deadline=deadline) as stream:
                await send_request_id(context, record.request_id)
                async for event in stream.joined():
                    if isinstance(event, Completion):
                        record.note_completion(event)
                    for message in event_to_protos(event):
                        await context.write(message)

    async def Abort(
        self,
        request: inference_pb2.AbortRequest,
        context: grpc.aio.ServicerContext[Any, inference_pb2.AbortResponse],
    ) -> inference_pb2.AbortResponse:
        async with authorised(context, self._access) as caller:
            request_id = request_id_to_abort(request)
            was_live = self._engine_loop.abort(caller.tenant, request_id)
            return inference_pb2.AbortResponse(was_live=was_live)

    async def Tokenize(
        self,
        request: inference_pb2.TokenizeRequest,
        context: grpc.aio.ServicerContext[Any, inference_pb2.TokenizeResponse],
    ) -> inference_pb2.TokenizeResponse:
        async with authorised(context, self._access):
            return await off_loop(partial(self._tokenize, request), num_bytes=request.ByteSize())

    async def Detokenize(
        self,
        request: inference_pb2.DetokenizeRequest,
        context: grpc.aio.ServicerContext[Any, inference_pb2.DetokenizeResponse],
    ) -> inference_pb2.DetokenizeResponse:
        async with authorised(context, self._access):
            return await off_loop(partial(self._detokenize, request), num_bytes=request.ByteSize())

    async def GetModelInfo(
        self,
        request: inference_pb2.GetModelInfoRequest,
        context: grpc.aio.ServicerContext[Any, inference_pb2.GetModelInfoResponse],
    ) -> inference_pb2.GetModelInfoResponse:
        async with authorised(context, self._access):
            return model_info_to_proto(self._model)

    def _tokenize(self, message: inference_pb2.TokenizeRequest) -> inference_pb2.TokenizeResponse:
        token_ids = token_ids_from_tokenize(message, model=self._model)
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    def _detokenize(self, message: inference_pb2.DetokenizeRequest) -> inference_pb2.DetokenizeResponse:
        token_ids = token_ids_from_detokenize(message, model=self._model)
        text = self._model.tokenizer.decode(token_ids, skip_special_tokens=message.skip_special_tokens)
        return inference_pb2.DetokenizeResponse(text=text)


def model_info_to_proto(model: ServedModel) -> inference_pb2.GetModelInfoResponse:
    """The message that describes a model and this worker's limits."""
    return inference_pb2.GetModelInfoResponse(
        name=model.name,
        build=model.build,
        architecture=model.architecture,
        num_layers=model.attention_shape.num_layers,
        num_query_heads=model.attention_shape.num_query_heads,
        num_kv_heads=model.attention_shape.num_kv_heads,
        head_dim=model.attention_shape.head_dim,
        vocabulary_size=model.vocabulary_size,
        context_length=model.context_length,
        block_size=model.block_size,
        num_blocks=model.num_blocks,
        block_bytes=model.block_bytes,
        device=model.device,
        kv_dtype=model.kv_dtype,
        eos_token_ids=model.eos_token_ids,
        has_chat_template=model.chat_template is not None,
    )


def event_to_protos(event: AnswerEvent) -> Iterator[inference_pb2.GenerateResponse]:
    """The message of one event, or several for a long scored prompt."""
    if not isinstance(event, PromptLogprobs):
        yield _event_to_proto(event)
        return
    for start in range(0, len(event.logprobs), MAX_SCORES_PER_MESSAGE):
        part = event.logprobs[start : start + MAX_SCORES_PER_MESSAGE]
        prompt_logprobs = inference_pb2.PromptLogprobs(logprobs=map(_logprobs_to_proto, part))
        yield inference_pb2.GenerateResponse(prompt_logprobs=prompt_logprobs)


def _event_to_proto(event: Delta | Completion) -> inference_pb2.GenerateResponse:
    if isinstance(event, Delta):
        stop = event.stop_reason
        return inference_pb2.GenerateResponse(
            delta=inference_pb2.Delta(
                index=event.index,
                text=event.text,
                token_ids=event.token_ids,
                finish_reason=_FINISH_REASONS[event.finish_reason],
                stop_text=stop if isinstance(stop, str) else None,
                stop_token_id=stop if isinstance(stop, int) else None,
                logprobs=map(_logprobs_to_proto, event.logprobs),
            )
        )
    return inference_pb2.GenerateResponse(
        completion=inference_pb2.Completion(
            request_id=event.request_id,
            usage=inference_pb2.Usage(**asdict(event.usage)),
            timing=inference_pb2.Timing(**asdict(event.timing)),
        )
    )


def _logprobs_to_proto(score: TokenLogprobs | None) -> inference_pb2.TokenLogprobs:
    if score is None:
        return inference_pb2.TokenLogprobs()
    return inference_pb2.TokenLogprobs(
        logprob=score.logprob, top_token_ids=score.top_token_ids, top_logprobs=score.top_logprobs
    )
