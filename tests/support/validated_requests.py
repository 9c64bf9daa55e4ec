"""Requests as clients send them, and what validation makes of them for a small model."""

from __future__ import annotations

from typing import Any

from support.tiny_loaded_model import byte_tokenizer, chat_template, constraint_compiler

from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.engine.request import Request
from prefixcache_worker.model.model import AttentionShape
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.generate import request_from_proto

CALLER = Caller(tenant="shop", role=Role.ADMIN)
CONTEXT_LENGTH = 128
VOCABULARY_SIZE = 300


def served_model(**changes: Any) -> ServedModel:
    fields: dict[str, Any] = {
        "name": "tiny",
        "build": "tiny-build",
        "architecture": "llama",
        "attention_shape": AttentionShape(num_layers=1, num_query_heads=1, num_kv_heads=1, head_dim=8),
        "vocabulary_size": VOCABULARY_SIZE,
        "context_length": CONTEXT_LENGTH,
        "eos_token_ids": (2,),
        "tokenizer": byte_tokenizer(),
        "chat_template": chat_template(),
        "constraints": constraint_compiler(VOCABULARY_SIZE),
        "device": "cpu",
        "block_size": 16,
        "num_blocks": 8,
        "block_bytes": 1024,
        "kv_dtype": "float32",
    }
    return ServedModel(**fields | changes)


MODEL = served_model()


def checked(message: pb.GenerateRequest, model: ServedModel = MODEL) -> Request:
    return request_from_proto(message, caller=CALLER, model=model)


def with_ids(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6, 7]), **fields)


def sampling(**fields: Any) -> pb.GenerateRequest:
    return with_ids(sampling=pb.SamplingParams(**fields))


def stopping(**fields: Any) -> pb.GenerateRequest:
    return with_ids(stop_conditions=pb.StopConditions(**fields))


def caching(**fields: Any) -> pb.GenerateRequest:
    return with_ids(cache=pb.CacheOptions(**fields))


def chat(*turns: tuple[str, str], **fields: Any) -> pb.GenerateRequest:
    messages = [pb.ChatMessage(role=role, content=content) for role, content in turns]
    return pb.GenerateRequest(chat=pb.ChatMessages(messages=messages), **fields)
