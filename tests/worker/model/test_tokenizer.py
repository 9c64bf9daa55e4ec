"""The tokenizer against transformers on the same file, and bytes against text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.texts import texts_in_many_scripts
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.default_model import default_model_path
from prefixcache_worker.model.rope import plain_rope
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.model.tokenizer_files import tokenizer_from_gguf, tokenizer_from_json

TEXTS = texts_in_many_scripts(300)
SPACES_BEFORE_NUMBER = re.compile(r"\s\s(?=\d)|\s(?=(?![0-9])[\d½¾Ⅷ②])")


@pytest.fixture(scope="module")
def tokenizer(default_model) -> Tokenizer:
    return default_model.tokenizer


def test_ids_equal_transformers(tokenizer, reference_tokenizer):
    for text in TEXTS:
        assert tokenizer.encode(text, add_special=True) == reference_tokenizer.encode(text), repr(text)


def test_ids_equal_transformers_as_it_is_except_before_numbers(tokenizer):
    """There transformers misses the pre-tokenizer that the file names; see `load_reference_tokenizer`."""
    path = default_model_path()
    untouched = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = [text for text in TEXTS if not SPACES_BEFORE_NUMBER.search(text)]
    assert len(texts) > 200
    for text in texts:
        assert tokenizer.encode(text, add_special=True) == untouched.encode(text), repr(text)


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_equals_transformers(tokenizer, reference_tokenizer, skip):
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special=False)
        for ids in (token_ids, token_ids[1:], token_ids[:-1]):  # cuts may fall inside a character
            expected = reference_tokenizer.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected, repr(text)


def test_bytes_of_tokens_join_to_the_text_without_special_tokens(tokenizer):
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special=False)
        joined = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids)
        plain = re.sub(r"<\|(im_start|im_end|endoftext)\|>|<file_sep>", "", text)
        assert joined.decode() == plain


def test_facts_of_the_default_tokenizer(tokenizer):
    assert tokenizer.vocabulary_size == 49_152
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == (2,)
    assert not tokenizer.add_bos
    assert tokenizer.encode("<|im_start|>a<|im_end|>", add_special=True) == [1, 81, 2]
    assert tokenizer.token_bytes(2) == b""
    assert tokenizer.token_bytes(49_152) == b""


def gguf_config(**changes) -> ModelConfig:
    fields = {
        "architecture": "llama",
        "name": "tiny",
        "num_layers": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_query_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 8,
        "vocabulary_size": 300,
        "context_length": 64,
        "rms_norm_eps": 1e-5,
        "rope": plain_rope(10_000.0, 8),
        "bos_token_id": 1,
        "eos_token_ids": (2,),
    }
    return ModelConfig(**(fields | changes))


def sentencepiece_metadata(**changes) -> dict:
    """A vocabulary as SentencePiece makes them: special, byte tokens, then pieces with a score each."""
    pieces = {"▁": -9.0, "h": -8.0, "e": -7.0, "l": -6.5, "o": -6.0, "he": -1.0, "ll": -2.0, "llo": -3.0}
    pieces |= {"hello": -4.0, "▁hello": -5.0, "▁h": -5.5}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.unknown_token_id": 0,
    } | changes


def test_sentencepiece_vocabulary_merges_by_score_and_falls_back_to_bytes():
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(), gguf_config(), source="tiny.gguf")
    tokens = sentencepiece_metadata()["tokenizer.ggml.tokens"]

    def pieces(text):
        return [tokens[token_id] for token_id in tokenizer.encode(text, add_special=False)]

    assert pieces("hello") == ["▁hello"]
    assert pieces("hello hello") == ["▁hello", "▁hello"]
    assert pieces("hell") == ["▁", "he", "ll"]  # "he" has a better score than "▁h"
    assert pieces("é") == ["▁", "<0xC3>", "<0xA9>"]
    token_ids = tokenizer.encode("hello é", add_special=True)
    assert token_ids[0] == 1
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode() == " hello é"
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "hello é"
    assert tokenizer.decode(token_ids, skip_special_tokens=False).startswith("<s>")


def test_bos_is_never_doubled():
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(), gguf_config(), source="tiny.gguf")
    plain = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello", add_special=True) == [1, *plain]
    assert tokenizer.encode("<s>hello", add_special=True).count(1) == 1
    assert tokenizer.encode("<s>hello", add_special=False).count(1) == 1
    assert tokenizer.encode("", add_special=True) == [1]


def test_a_file_may_say_that_no_bos_is_wanted():
    metadata = sentencepiece_metadata(**{"tokenizer.ggml.add_bos_token": False})
    tokenizer = tokenizer_from_gguf(metadata, gguf_config(), source="tiny.gguf")
    assert tokenizer.encode("<unk>", add_special=True) == [0]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["It", "'s", "Ġ", "Ġ1234", "Ġdays", "!", "Ċ", "Ċ", "x"]),
        ("smollm", ["It", "'s", "ĠĠ", "1", "2", "3", "4", "Ġdays", "!", "Ċ", "Ċ", "x"]),
        ("llama-bpe", ["It", "'s", "Ġ", "Ġ", "123", "4", "Ġdays", "!ĊĊ", "x"]),
        ("qwen2", ["It", "'s", "Ġ", "Ġ", "1", "2", "3", "4", "Ġdays", "!ĊĊ", "x"]),
    ],
)
def test_each_named_pre_tokenizer_cuts_as_its_model_does(pre, pieces):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    wanted = sorted({piece for piece in pieces if len(piece) > 1})
    merges = [(word[:cut], word[cut]) for word in wanted for cut in range(1, len(word))]
    tokens = dict.fromkeys([*alphabet, *("".join(merge) for merge in merges)])
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
    }
    tokenizer = tokenizer_from_gguf(metadata, gguf_config(), source="tiny.gguf")
    ids = tokenizer.encode("It's  1234 days!\n\nx", add_special=False)
    assert [list(tokens)[token_id] for token_id in ids] == pieces


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, r"tiny.gguf: tokenizer 't5' is not supported.*gpt2 and llama"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "jina", "tokenizer.ggml.merges": []},
            r"tiny.gguf: pre-tokenizer 'jina' is not supported.*smollm",
        ),
        ({"tokenizer.ggml.model": "gpt2"}, r"tiny.gguf: tokenizer.ggml.merges is missing"),
    ],
)
def test_unknown_or_incomplete_vocabularies_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        tokenizer_from_gguf(sentencepiece_metadata(**changes), gguf_config(), source="tiny.gguf")


def save_sentencepiece_json(path: Path, *, template: bool) -> Path:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    backend = Backend(BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    if template:
        backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.save(str(path))
    return path


@pytest.mark.parametrize(
    ("template", "settings", "add_bos"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"add_bos_token": False}, False),
        (False, {"add_bos_token": True}, True),
    ],
)
def test_tokenizer_json_says_whether_bos_is_added(tmp_path, template, settings, add_bos):
    path = save_sentencepiece_json(tmp_path / "tokenizer.json", template=template)
    tokenizer = tokenizer_from_json(path, settings, gguf_config())
    assert tokenizer.encode("a a", add_special=True) == [1] * add_bos + [261, 261]
    assert tokenizer.token_bytes(261) == b" a"


def test_a_post_processor_that_adds_other_tokens_is_refused(tmp_path):
    path = save_sentencepiece_json(tmp_path / "tokenizer.json", template=True)
    with pytest.raises(ConfigError, match=r"adds the tokens \[1\] to every text; only the BOS token \(2\)"):
        tokenizer_from_json(path, {}, gguf_config(bos_token_id=2))


def test_missing_and_damaged_tokenizer_files_are_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ConfigError, match=r"tokenizer\.json: missing"):
        tokenizer_from_json(path, {}, gguf_config())
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: not a tokenizer file"):
        tokenizer_from_json(path, {}, gguf_config())


def test_a_tokenizer_whose_bytes_cannot_be_told_is_refused():
    backend = Backend(WordLevel({"word": 0, "with space": 1}))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(ConfigError, match=r"token 1 \('with space'\) is not in the byte-level alphabet"):
        Tokenizer(backend, bos_token_id=None, eos_token_ids=(), add_bos=False, source="x")
