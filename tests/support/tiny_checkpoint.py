"""Random checkpoints of a few thousand weights on disk, and the transformers model they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
VOCABULARY_SIZE = 300
_SHAPE = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def tiny_transformers_model(model_type: str = "llama", **changes: Any) -> PreTrainedModel:
    """A transformers model with random weights in every tensor, biases and norms too."""
    config = AutoConfig.for_model(model_type, **(_SHAPE | changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    is_gemma = model_type == "gemma3_text"  # stores how far a norm weight is from 1
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(0.2 * noise + (0 if is_gemma else 1))
            else:
                parameter.copy_(noise * (0.3 if noise.ndim == 2 else 0.5))
    return model


def transformers_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits of every token: [len(token_ids), vocabulary_size]."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def tiny_tokenizer() -> Tokenizer:
    """Special tokens, the 256 bytes and the merge of "he"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: token_id for token_id, token in enumerate([*SPECIAL_TOKENS, *alphabet, "he"])}
    tokenizer = Tokenizer(BPE(vocabulary, [("h", "e")]))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save_tiny_checkpoint(folder: Path, model: PreTrainedModel, *, max_shard_size: str = "5GB") -> Path:
    """Write config.json, safetensors and tokenizer.json, as the Hugging Face hub has them."""
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def save_tiny_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    architecture: str = "llama",
    leave_out: tuple[str, ...] = (),
    extra: dict[str, torch.Tensor] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write a model as llama.cpp's converter does: other names, whole norms, llama's rotary pairs adjacent.

    `metadata` goes in as it is: what the converter would write of rope scaling and windows.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    vocabulary = tiny_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    padding = [f"<pad{index}>" for index in range(config.vocab_size - len(tokens))]
    writer.add_token_list([*tokens, *padding])
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens] + [5] * len(padding))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in (metadata or {}).items():
        value_type = gguf.GGUFValueType.get_type(value)
        is_count = value_type is gguf.GGUFValueType.INT32
        writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if is_count else value_type)
    tensors = _gguf_tensors(model, architecture)
    for name, tensor in (tensors | (extra or {})).items():
        if name not in leave_out:
            writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_tensors(model: PreTrainedModel, architecture: str) -> dict[str, torch.Tensor]:
    config = model.config
    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known.get(architecture, gguf.MODEL_ARCH.LLAMA), config.num_hidden_layers)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture == "gemma3" and "norm" in name:
            tensor = tensor + 1
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            rows = tensor.view(heads, 2, -1, *tensor.shape[1:])
            tensor = rows.transpose(1, 2).reshape(tensor.shape)
        gguf_name = names.get_name(name, (".weight", ".bias"))
        tensors[gguf_name] = tensor
    return tensors
