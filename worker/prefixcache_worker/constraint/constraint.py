"""What an answer must look like, and how far one choice has come in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher

from prefixcache_worker.constraint.grammar import first_line

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule that answers follow, compiled for one vocabulary. `ConstraintCompiler` makes them."""

    field_name: str
    """The request's field that holds the rule, for errors."""
    matcher: LLMatcher
    """At the rule's beginning; it is copied, never advanced."""
    eos_token_ids: tuple[int, ...]
    end_id: int
    """What stands for the end of the text in the matcher: no token of the model."""

    def start(self, *, ignore_eos: bool = False) -> ConstraintState:
        """The state of a choice without tokens. With `ignore_eos` end-of-text tokens are never allowed."""
        return ConstraintState(self, ignore_eos=ignore_eos)


class ConstraintState:
    """How far one choice has followed its rule. Changed by `accept` alone.

    It depends on the accepted tokens and on nothing else: a choice that is preempted goes on where it was.
    """

    def __init__(self, constraint: Constraint, *, ignore_eos: bool) -> None:
        self._matcher = constraint.matcher.deep_copy()
        self._eos_token_ids = constraint.eos_token_ids
        self._end_id = constraint.end_id
        self._ignore_eos = ignore_eos
        self._look_ahead()

    def accept(self, token_id: int) -> None:
        """The next token is this one. Requires: it is allowed.

        Cost: some ten microseconds usually; the compiler's limits bound it.
        """
        if token_id not in self._eos_token_ids:
            self._matcher.consume_token(token_id)
            self._look_ahead()

    def _look_ahead(self) -> None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32).copy()
        self.error = first_line(self._matcher.get_error())
        """Why nobody can tell what may follow; "" if it is known."""
        may_end = not self.error and self._matcher.is_accepting()
        for token_id in (self._end_id, *self._eos_token_ids):
            bits[token_id // WORD_BITS] &= ~np.uint32(1 << token_id % WORD_BITS)
        self.is_complete = may_end and not bits.any()
        """Whether the text follows the rule, and nothing can be added to it."""
        if not (self.error or may_end or bits.any()):
            self.error = "no token of the model continues the text"
        if may_end and not self._ignore_eos:
            for token_id in self._eos_token_ids:
                bits[token_id // WORD_BITS] |= np.uint32(1 << token_id % WORD_BITS)
        self.allowed_bits = bits
        """[at least vocabulary_size / 32] uint32: bit i of word w is set if token 32 * w + i may come next.
        End-of-text tokens may exactly where the text may end."""
