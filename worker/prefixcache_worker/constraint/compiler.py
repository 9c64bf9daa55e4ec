"""From the text of a rule to a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from prefixcache_worker.constraint.constraint import Constraint
from prefixcache_worker.constraint.grammar import MAX_RULE_BYTES, GrammarError, Vocabulary, compile_rule
from prefixcache_worker.constraint.trial_process import TrialProcess
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.model.tokenizer import Tokenizer


class ConstraintCompiler:
    """Compiles rules for one model's vocabulary. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer, *, vocabulary_size: int, eos_token_ids: Sequence[int]) -> None:
        """The vocabulary is the model's, whose logits may reach beyond the tokenizer's ids. O(vocabulary)."""
        special = tokenizer.special_tokens
        vocabulary = Vocabulary(
            (*(special.get(i) or tokenizer.token_bytes(i) for i in range(vocabulary_size)), b"<end of text>"),
            (*special, vocabulary_size),
        )
        self._eos_token_ids = tuple(eos_token_ids)
        self._end_id = vocabulary.end_id
        self._index = vocabulary.make_index()
        self._trial = TrialProcess(vocabulary)
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="rules")
        """Where a caller on an asyncio loop should call `compile`, which waits for a process."""

    def compile(self, kind: str, text: str, *, field_name: str) -> Constraint:
        """A constraint of the kind "json_schema", "regex" or "grammar".

        Raises InvalidRequestError, naming the field, for what cannot be understood, is beyond the limits, or
        is followed by nothing but an empty text. Takes a few milliseconds, and the first time, which
        starts a process, some tenths of a second.
        """
        num_bytes = len(text.encode())
        if num_bytes > MAX_RULE_BYTES:
            raise InvalidRequestError(
                field_name, f"has {num_bytes} bytes; at most {MAX_RULE_BYTES} are taken"
            )
        try:
            self._trial.check(kind, text)
            matcher = compile_rule(self._index, kind, text)
        except GrammarError as error:
            raise InvalidRequestError(field_name, f"cannot be used: {error}") from None
        constraint = Constraint(field_name, matcher, self._eos_token_ids, self._end_id)
        start = constraint.start()
        if start.error:
            raise InvalidRequestError(field_name, f"cannot be used: {start.error}")
        if start.is_complete:
            raise InvalidRequestError(field_name, "allows nothing but an empty answer")
        return constraint
