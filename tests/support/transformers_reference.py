"""transformers' own reading of the default model's GGUF file, to compare ours with."""

from __future__ import annotations

from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def load_reference_model(path: Path) -> PreTrainedModel:
    """A llama GGUF file as transformers dequantises and permutes it, in float32.

    The steps of `from_pretrained(gguf_file=...)`, which itself would ask for one more package.
    """
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    keys = model.load_state_dict(tensors, strict=False)
    assert keys.missing_keys == ["lm_head.weight"] * config.tie_word_embeddings
    assert keys.unexpected_keys == []
    return model


def load_reference_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """`AutoTokenizer` with the pre-tokenizer that a SmolLM file names.

    transformers takes GPT-2's for every GGUF file. SmolLM was trained with each digit split off first, which
    makes other tokens of the whitespace in front of a number.
    """
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer
