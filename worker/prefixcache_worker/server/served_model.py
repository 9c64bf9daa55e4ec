"""What the servicers know of the model."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache_worker.constraint.compiler import ConstraintCompiler
from prefixcache_worker.model.chat_template import ChatTemplate
from prefixcache_worker.model.model import AttentionShape
from prefixcache_worker.model.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model's description and the limits this worker serves it with."""

    name: str
    build: str
    """Part of every namespace: KV of another build is never found."""
    architecture: str
    attention_shape: AttentionShape
    vocabulary_size: int
    context_length: int
    """Most tokens of prompt and answer together; not more than the KV pool holds."""
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    constraints: ConstraintCompiler
    device: str
    block_size: int
    num_blocks: int
    block_bytes: int
    kv_dtype: str
