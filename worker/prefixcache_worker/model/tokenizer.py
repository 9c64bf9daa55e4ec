"""Text to token ids and back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tokenizers import Tokenizer as Backend

from prefixcache_worker.errors import ConfigError


class Tokenizer:
    """A model's tokenizer. Special tokens written out in a text become their ids, as in transformers."""

    def __init__(
        self,
        backend: Backend,
        *,
        bos_token_id: int | None,
        eos_token_ids: Sequence[int],
        add_bos: bool,
        source: str,
    ) -> None:
        """`add_bos`: `encode` with `add_special` puts the BOS token in front.

        Raises ConfigError naming `source` if the tokens' bytes cannot be told.
        """
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self.add_bos = add_bos and bos_token_id is not None
        self._backend = backend
        self._token_bytes = _token_bytes_table(backend, source)

    @property
    def vocabulary_size(self) -> int:
        """One more than the highest token id."""
        return len(self._token_bytes)

    @property
    def special_tokens(self) -> dict[int, bytes]:
        """The names of the tokens that stand for no text, by id. O(added tokens)."""
        added = self._backend.get_added_tokens_decoder()
        return {token_id: token.content.encode() for token_id, token in added.items() if token.special}

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of `text`.

        `add_special` puts the BOS token in front where the model wants one and the text has none yet, so
        that it is never doubled. Chat prompts take False: their template writes what the model wants.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if add_special and self.add_bos and ids[:1] != [self.bos_token_id]:
            assert self.bos_token_id is not None
            ids.insert(0, self.bos_token_id)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of `token_ids`; bytes that are no complete UTF-8 come out as U+FFFD."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for, b"" for special tokens and ids without a token. O(1).

        A character may be spread over several tokens; only the joined bytes are UTF-8.
        """
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""


def _token_bytes_table(backend: Backend, source: str) -> list[bytes]:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    to_bytes = _bytes_of_byte_level if _is_byte_level(backend) else _bytes_of_sentencepiece
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        if token_id in added:
            table[token_id] = b"" if added[token_id].special else added[token_id].content.encode()
        else:
            try:
                table[token_id] = to_bytes(token)
            except KeyError as error:
                raise ConfigError(
                    f"{source}: token {token_id} ({token!r}) is not in the byte-level alphabet; "
                    "this kind of tokenizer is not supported."
                ) from error
    return table


def _is_byte_level(backend: Backend) -> bool:
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    kinds = {decoder.get("type"), *(part["type"] for part in decoder.get("decoders", []))}
    return "ByteLevel" in kinds


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself if printable in Latin-1, else from U+0100 upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(byte): byte for byte in printable}
    return stand_ins | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_level_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _bytes_of_byte_level(token: str) -> bytes:
    return bytes(_BYTE_OF_CHARACTER[character] for character in token)


def _bytes_of_sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("\u2581", " ").encode()
