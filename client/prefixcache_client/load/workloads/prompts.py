"""Prompts made of runs of tokens, or of words, that stand for them."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from functools import lru_cache
from random import Random
from typing import Literal

from prefixcache_client.load.workloads.limits import Limits
from prefixcache_client.messages import Prompt

PromptForm = Literal["tokens", "text", "messages"]
"""Token ids; plain text; or chat messages with the shared part as the system's."""

_LEAST_TOKEN_ID = 100  # special tokens lie below
_GREATEST_TOKEN_ID = 40_000  # and above, where the vocabulary is large

_NUM_KEPT_NAMES = 1024
_NUM_NOISE_TOKENS = 1 << 16
_STRIDE = 40_503  # odd, so that runs with different numbers begin at different places

_TEXT = (
    "able about above across after again air all almost also always and animal answer area art ask away "
    "back base bear beauty bed before behind best better bird black blue boat body book both box boy "
    "bring brother build busy call care carry cat center chance change check child city class clean "
    "clear close cold color come common cook cool corner could country course cover cross cry cut dark "
    "day decide deep direct dog door down draw dream drive dry early earth east easy eat edge egg end "
    "energy enough even ever every eye face fact fall family far farm fast father feel feet few field "
    "figure final fine finish fire first fish five floor fly follow food foot force forest form four "
    "free friend front full game "
)
_WORDS = tuple(_TEXT.split())
"""Short ones, which most tokenizers know as one token each, with the space before it."""


class Prompts:
    """Makes runs of tokens from names, and prompts from runs; the same seed, the same, in any process."""

    def __init__(self, form: PromptForm, limits: Limits, seed: int) -> None:
        self._form = form
        self._seed = seed
        if form == "tokens":
            stop = min(_GREATEST_TOKEN_ID, limits.vocabulary_size)
            self._alphabet = range(min(_LEAST_TOKEN_ID, stop // 2), stop)
        else:
            self._alphabet = range(len(_WORDS))
        self._noise = array("I", self.rng("noise").choices(self._alphabet, k=_NUM_NOISE_TOKENS))
        self._start = lru_cache(maxsize=_NUM_KEPT_NAMES)(self._new_start)

    def rng(self, *name: object) -> Random:
        """Random numbers of this name."""
        return Random("-".join(map(str, (self._seed, *name))))

    def run(self, name: str, number: int, num_tokens: int, *, unlike: Collection[int] = ()) -> list[int]:
        """The tokens of the run of this name and number. O(num_tokens).

        Runs of one name and different numbers differ in the first token, or in the second when there are
        more runs than tokens in the vocabulary. No run begins with a token of `unlike`. What follows is cut
        from one long random run: only how prompts begin matters to a cache, and this is fast.
        """
        alphabet, noise, start = self._alphabet, self._noise, self._start(name)
        at = (start + number * _STRIDE) % len(noise)
        tokens = noise[at : at + num_tokens].tolist()
        while len(tokens) < num_tokens:
            tokens.extend(noise[: num_tokens - len(tokens)])
        avoided = sorted({token - alphabet.start for token in unlike if token in alphabet})
        rest, first = divmod(start + number, len(alphabet) - len(avoided))
        for letter in avoided:
            first += first >= letter
        tokens[0] = alphabet[first]
        if num_tokens > 1:
            tokens[1] = alphabet[rest % len(alphabet)]
        return tokens

    def opening(self, shared: Sequence[int], own: Sequence[int]) -> Prompt:
        """A prompt that begins with what it shares with others."""
        if self._form == "messages":
            system = [{"role": "system", "content": self._text(shared)}] if shared else []
            return [*system, {"role": "user", "content": self._text(own)}]
        return [*shared, *own] if self._form == "tokens" else self._text([*shared, *own])

    def more(self, own: Sequence[int]) -> Prompt:
        """What comes behind an answer."""
        return self.opening((), own)

    def public_tokens(self, num_tokens: int) -> int:
        """How many tokens may be declared public of a shared part of so many."""
        return num_tokens if self._form == "tokens" else 0

    def public_messages(self, num_tokens: int) -> int:
        """How many messages may."""
        return 1 if self._form == "messages" and num_tokens else 0

    def _text(self, tokens: Sequence[int]) -> str:
        return "".join(f" {_WORDS[token]}" for token in tokens)

    def _new_start(self, name: str) -> int:
        return self.rng(name).randrange(len(self._noise))
