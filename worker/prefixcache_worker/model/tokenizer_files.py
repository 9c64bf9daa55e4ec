"""Builds a `Tokenizer` from what a model file holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # GGUF token types

_WORDS_AND_PUNCTUATION = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|{numbers}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_from_gguf(metadata: Mapping[str, Any], config: ModelConfig, *, source: str) -> Tokenizer:
    """Rebuild the tokenizer from a GGUF file's vocabulary. Raises ConfigError for a kind we do not know."""
    kind = str(metadata.get("tokenizer.ggml.model"))
    pre = metadata.get("tokenizer.ggml.pre", "default")
    needed = {"gpt2": "tokenizer.ggml.merges", "llama": "tokenizer.ggml.scores"}.get(kind)
    if needed is not None and needed not in metadata:
        raise ConfigError(f"{source}: {needed} is missing; the file is incomplete, fetch it again.")
    if kind == "gpt2":
        backend = _byte_level_backend(metadata, pre, source)
    elif kind == "llama":
        backend = _sentencepiece_backend(metadata)
    else:
        raise ConfigError(f"{source}: tokenizer {kind!r} is not supported; supported are gpt2 and llama.")
    tokens = metadata["tokenizer.ggml.tokens"]
    token_types = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=token_type != _USER_DEFINED)
            for token, token_type in zip(tokens, token_types, strict=True)
            if token_type in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )
    # Without the key, files of these two kinds mean that there is a BOS token.
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre == "llama-bpe")
    return Tokenizer(
        backend,
        bos_token_id=config.bos_token_id,
        eos_token_ids=config.eos_token_ids,
        add_bos=bool(add_bos),
        source=source,
    )


def tokenizer_from_json(path: Path, settings: Mapping[str, Any], config: ModelConfig) -> Tokenizer:
    """Read a tokenizer.json; `settings` is the tokenizer_config.json beside it (may be empty).

    Raises ConfigError if the file is missing, damaged, or adds other tokens than BOS.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: missing; a model folder needs it, fetch the folder again.")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path}: not a tokenizer file ({error}); fetch it again.") from error
    added_ids = backend.encode("", add_special_tokens=True).ids
    if added_ids not in ([], [config.bos_token_id]):
        raise ConfigError(
            f"{path}: adds the tokens {added_ids} to every text; only the BOS token "
            f"({config.bos_token_id}) is supported."
        )
    return Tokenizer(
        backend,
        bos_token_id=config.bos_token_id,
        eos_token_ids=config.eos_token_ids,
        add_bos=bool(settings.get("add_bos_token", added_ids)),
        source=str(path),
    )


def _byte_level_backend(metadata: Mapping[str, Any], pre: str, source: str) -> Backend:
    splitter = _splitter(pre, source)
    vocabulary = {token: token_id for token_id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    # Llama 3 takes a word that is a token whole, even where no merges lead to it.
    backend = Backend(BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    return backend


def _splitter(pre: str, source: str) -> pre_tokenizers.PreTokenizer:
    """What cuts a text before the merges run. GGUF names it; the rules are those of the named model."""
    match pre:
        case "gpt-2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        case "llama-bpe":
            return _regex_splitter(r"\p{N}{1,3}")
        case "qwen2":
            return _regex_splitter(r"\p{N}")
    raise ConfigError(
        f"{source}: pre-tokenizer {pre!r} is not supported; supported are gpt-2, smollm, llama-bpe and qwen2."
    )


def _regex_splitter(numbers: str) -> pre_tokenizers.PreTokenizer:
    pattern = Regex(_WORDS_AND_PUNCTUATION.replace("{numbers}", numbers))
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece_backend(metadata: Mapping[str, Any]) -> Backend:
    tokens = metadata["tokenizer.ggml.tokens"]
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = _merges_from_scores(vocabulary, metadata["tokenizer.ggml.scores"])
    backend = Backend(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    has_space_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    prefix = [normalizers.Prepend("\u2581")] if has_space_prefix else []
    strip = [decoders.Strip(" ", 1, 0)] if has_space_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece stores no merges: any two tokens whose join is a token merge, best score first."""
    merges = []
    for token, token_id in vocabulary.items():
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [split for split in splits if split[0] in vocabulary and split[1] in vocabulary]
        known.sort(key=lambda split: (vocabulary[split[0]], vocabulary[split[1]]))
        merges += [(scores[token_id], split) for split in known]
    merges.sort(key=lambda merge: -merge[0])  # stable: equal scores keep the vocabulary's order
    return [split for _, split in merges]
