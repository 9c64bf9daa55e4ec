"""What `load_model` returns, around any small model, with a tokenizer of one token per byte."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from prefixcache_worker.constraint.compiler import ConstraintCompiler
from prefixcache_worker.model.chat_template import ChatTemplate
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.model.model import Model
from prefixcache_worker.model.rope import plain_rope
from prefixcache_worker.model.tokenizer import Tokenizer

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<|turn|>")
BOS_ID, EOS_ID, TURN_ID = 1, 2, 3

CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def byte_tokenizer(*, add_bos: bool = False) -> Tokenizer:
    """Ids 0 to 3 are special, the other 256 one for each byte, in the order of the byte-level alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *alphabet]
    backend = Backend(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return Tokenizer(backend, bos_token_id=BOS_ID, eos_token_ids=(EOS_ID,), add_bos=add_bos, source="bytes")


def chat_template() -> ChatTemplate:
    return ChatTemplate(CHAT_TEMPLATE, special_tokens={}, source="chat template")


def constraint_compiler(vocabulary_size: int = 260) -> ConstraintCompiler:
    """Compiles rules for `byte_tokenizer` and a model of this many logits."""
    return ConstraintCompiler(byte_tokenizer(), vocabulary_size=vocabulary_size, eos_token_ids=(EOS_ID,))


def loaded(model: Model, *, add_bos: bool = False) -> LoadedModel:
    """`model` as the loader would hand it over. Requires a vocabulary of at least 260."""
    shape = model.attention_shape
    config = ModelConfig(
        architecture="llama",
        name="tiny",
        num_layers=shape.num_layers,
        hidden_size=shape.num_query_heads * shape.head_dim,
        intermediate_size=2 * shape.num_query_heads * shape.head_dim,
        num_query_heads=shape.num_query_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocabulary_size=model.vocabulary_size,
        context_length=model.context_length,
        rms_norm_eps=1e-5,
        rope=plain_rope(10_000.0, shape.head_dim),
        bos_token_id=BOS_ID,
        eos_token_ids=(EOS_ID,),
    )
    return LoadedModel(
        config=config,
        model=model,
        tokenizer=byte_tokenizer(add_bos=add_bos),
        chat_template=chat_template(),
        build="tiny-build",
    )
