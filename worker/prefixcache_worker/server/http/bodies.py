"""The bodies that the HTTP door takes: OpenAI's fields, those vLLM's users know, and a few of ours.

What a value may be is judged where gRPC messages are; here stand the types alone, in their ranges as far as
the messages can hold them. A field that is not here is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")

Uint32 = Annotated[int, Field(ge=0, lt=1 << 32)]
Int32 = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first wrong item is the only one told of: a million of them would take gigabytes."""
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]


class _Body(BaseModel):
    # Strict: "5" is not 5, and a client that sends it has a mistake that it wants to hear of.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Body):
    include_usage: bool | None = None
    """End the stream with a chunk that has the usage and no choices."""
    include_obfuscation: bool | None = None
    """Ignored: chunks are as long as their text."""


class _GenerateBody(_Body):
    """What both calls take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Uint32 | None = None
    stop: str | Items[str] | None = None
    max_tokens: Uint32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Seed | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    """By token id, in decimal digits."""

    # Known from vLLM.
    top_k: Int32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Uint32 | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Items[Uint32] | None = None
    include_stop_str_in_output: bool | None = None
    priority: Int32 | None = None
    cache_salt: str | None = None

    # Taken and ignored: they mean nothing here, and clients send them to everyone.
    user: Any = None
    safety_identifier: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class TextPart(_Body):
    type: Literal["text"]
    text: str


class FunctionCall(_Body):
    name: str
    arguments: str


class MessageToolCall(_Body):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None
    """Ignored; streamed calls have it, and some clients send it back."""


class ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[TextPart] | None = None
    name: str | None = None
    tool_calls: Items[MessageToolCall] | None = None
    tool_call_id: str | None = None

    # Ignored: what an answer has, and clients send back as it came.
    refusal: Any = None
    annotations: Any = None
    audio: None = None
    function_call: None = None


class FunctionDefinition(_Body):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Ignored: arguments always follow their schema."""


class Tool(_Body):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(_Body):
    name: str


class NamedToolChoice(_Body):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(_Body):
    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    """Ignored: an answer always follows its schema."""


class TextFormat(_Body):
    type: Literal["text"]


class JsonObjectFormat(_Body):
    type: Literal["json_object"]


class JsonSchemaFormat(_Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class ChatBody(_GenerateBody):
    """POST /v1/chat/completions."""

    messages: Items[ChatMessage]
    max_completion_tokens: Uint32 | None = None
    logprobs: bool | None = None
    top_logprobs: Uint32 | None = None
    tools: Items[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    public_messages: Uint32 | None = None
    """So many messages from the first on may be shared with every tenant."""


class CompletionBody(_GenerateBody):
    """POST /v1/completions."""

    prompt: str | Items[str] | Items[Uint32] | Items[Items[Uint32]]
    logprobs: Uint32 | None = None
    echo: bool | None = None
    prefix_id: str | None = None
    """A prefix of the cache service whose tokens go in front of every prompt."""


class ExplainBody(_Body):
    """POST /ui/data/explain. One of the two."""

    prompt: str | None = None
    messages: Items[ChatMessage] | None = None
