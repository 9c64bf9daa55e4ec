"""From the text of a rule to a constraint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from prefixcache_worker.engine.constraint import Constraint
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.model.tokenizer import Tokenizer

MAX_RULE_BYTES = 32 * 1024
MAX_REASON_LENGTH = 200
JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""Room for an indented text, and none for a model that adds line breaks for ever."""
LIMITS = LLParserLimits(
    max_items_in_row=1_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""What one rule may cost: about 20 ms to compile, 10 ms for a token, 40 MB of states."""

_GRAMMAR_BY_KIND: dict[str, Callable[[str], str]] = {
    "json_schema": lambda text: LLMatcher.grammar_from_json_schema(
        text, defaults={"whitespace_pattern": JSON_WHITESPACE}
    ),
    "regex": LLMatcher.grammar_from_regex,
    "grammar": LLMatcher.grammar_from_lark,
}


class ConstraintCompiler:
    """Compiles rules for one model's vocabulary. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer, *, vocabulary_size: int, eos_token_ids: Sequence[int]) -> None:
        """The vocabulary is the model's, whose logits may reach beyond the tokenizer's ids.

        O(vocabulary): 0.1 s for 50,000 tokens.
        """
        self._eos_token_ids = tuple(eos_token_ids)
        self._end_id = vocabulary_size
        self._vocabulary = LLTokenizer(
            TokenizerWrapper(_Vocabulary(tokenizer, vocabulary_size)),
            n_vocab=vocabulary_size + 1,
            eos_token=self._end_id,
        )

    def compile(self, kind: str, text: str, *, field_name: str) -> Constraint:
        """A constraint of the kind "json_schema", "regex" or "grammar".

        Raises InvalidRequestError, naming the field, for what cannot be understood, is beyond the limits or
        that only an empty text follows.
        """
        num_bytes = len(text.encode())
        if num_bytes > MAX_RULE_BYTES:
            raise InvalidRequestError(
                field_name, f"has {num_bytes} bytes; at most {MAX_RULE_BYTES} are taken"
            )
        try:
            grammar = _GRAMMAR_BY_KIND[kind](text)
        except ValueError as error:
            raise InvalidRequestError(field_name, f"cannot be used: {_first_line(str(error))}") from None
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequestError(field_name, f"cannot be used: {_first_line(matcher.get_error())}")
        constraint = Constraint(field_name, matcher, self._eos_token_ids, self._end_id)
        start = constraint.start()
        if start.error:
            raise InvalidRequestError(field_name, f"allows no token: {_first_line(start.error)}")
        if start.is_complete:
            raise InvalidRequestError(field_name, "allows nothing but an empty answer")
        return constraint


class _Vocabulary:
    """The tokens as llguidance asks for them, and behind them one that stands for the end of the text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        # By its name a grammar can ask for a special token, which has no text.
        special = tokenizer.special_tokens | {vocabulary_size: b"<end of text>"}
        self.eos_token_id = vocabulary_size
        self.special_token_ids = sorted(special)
        self.tokens = [special.get(i) or tokenizer.token_bytes(i) for i in range(vocabulary_size + 1)]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)


def _first_line(reason: str) -> str:
    return reason.strip().split("\n", 1)[0][:MAX_REASON_LENGTH]
