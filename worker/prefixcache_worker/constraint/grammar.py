"""From the text of a rule to llguidance's matcher, within limits.

Imports nothing heavy: the process that tries rules out loads this alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

MAX_RULE_BYTES = 64 * 1024
MAX_REASON_LENGTH = 200
JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""Room for an indented text, and none for a model that adds line breaks for ever."""
ANY_SPLIT = '\n%llguidance {"no_forcing": true}'
"""Text without an alternative may come in any tokens that make it up. Else a tokenizer would choose them, and
that of a model may put in characters of its own."""
LIMITS = LLParserLimits(
    max_items_in_row=1_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""What a rule may cost from token to token: milliseconds of time, and 40 MB of states."""


class GrammarError(ValueError):
    """A rule that cannot be used. The message is one short sentence without an end."""


def first_line(reason: str) -> str:
    """What llguidance says of an error, without what may follow of the rule itself."""
    return reason.strip().split("\n", 1)[0][:MAX_REASON_LENGTH]


class Vocabulary(NamedTuple):
    """The tokens of a model, and behind them one more that stands for the end of the text."""

    tokens: tuple[bytes, ...]
    """The bytes that each stands for; a special token, which stands for none, has its name here."""
    special_token_ids: tuple[int, ...]

    @property
    def end_id(self) -> int:
        return len(self.tokens) - 1

    def make_index(self) -> LLTokenizer:
        """The tokens in the form that matchers share. O(vocabulary): 0.1 s for 50,000."""
        return LLTokenizer(TokenizerWrapper(_Tokens(self)), n_vocab=len(self.tokens), eos_token=self.end_id)


def compile_rule(index: LLTokenizer, kind: str, text: str) -> LLMatcher:
    """A matcher at the beginning of a rule of the kind "json_schema", "regex" or "grammar".

    Raises GrammarError. Cost: a millisecond for usual rules. No limit holds for unusual ones: within a few
    hundred bytes it can take minutes, or overflow the stack.
    """
    try:
        lark = _LARK_BY_KIND[kind](text)
    except ValueError as error:
        raise GrammarError(first_line(str(error))) from None
    matcher = LLMatcher(index, LLMatcher.grammar_from_lark(lark + ANY_SPLIT), log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise GrammarError(first_line(matcher.get_error()))
    matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(f"no token can come first ({first_line(matcher.get_error())})")
    return matcher


def _lark_of_json_schema(text: str) -> str:
    grammar = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": JSON_WHITESPACE})
    return "start: %json " + json.dumps(json.loads(grammar)["grammars"][0]["json_schema"])


def _lark_of_regex(text: str) -> str:
    lark: str = json.loads(LLMatcher.grammar_from_regex(text))["grammars"][0]["lark_grammar"]
    return lark


_LARK_BY_KIND: dict[str, Callable[[str], str]] = {
    "json_schema": _lark_of_json_schema,
    "regex": _lark_of_regex,
    "grammar": str,
}


class _Tokens:
    """What `TokenizerWrapper` asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_token_ids
        self.eos_token_id = vocabulary.end_id

    def __call__(self, text: str | bytes) -> list[int]:
        raise NotImplementedError("nothing is tokenised: see ANY_SPLIT")
