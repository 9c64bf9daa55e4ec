"""Step 5 of the article: after a fix, is it faster, and are the answers the same?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import NamedTuple

from prefixcache_client.doctor.report import Report


class OtherText(NamedTuple):
    """A prompt that is answered otherwise now."""

    prompt: str
    before: str
    after: str


class Change(NamedTuple):
    """A setting or a fact of the machine."""

    name: str
    before: str
    after: str


class Speed(NamedTuple):
    """A time before and after: medians over the rounds, with the least and the greatest."""

    name: str
    before: float
    after: float
    before_range: tuple[float, float]
    after_range: tuple[float, float]

    @property
    def times_as_fast(self) -> float:
        return self.before / self.after

    @property
    def is_apart(self) -> bool:
        """Whether no round of one side lies within the other's range; unknown, so False, of single rounds."""
        if self.before_range[0] == self.before_range[1] or self.after_range[0] == self.after_range[1]:
            return False
        return self.after_range[1] < self.before_range[0] or self.before_range[1] < self.after_range[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Two reports compared; the JSON of `doctor verify`."""

    other_texts: list[OtherText]
    """Empty when every prompt is answered alike."""
    num_texts: int
    speeds: list[Speed]
    changes: list[Change]
    """What differs between the two beside the code: nothing of it should, but for what was to be fixed."""
    gone: list[str]
    """Pitfalls that are not found any more."""
    new: list[str]
    """Pitfalls that were not found before."""

    @property
    def holds(self) -> bool:
        """Whether the answers are the same, and nothing new is wrong."""
        return not self.other_texts and not self.new


def verify(before: Report, after: Report) -> Verification:
    """Compare what was answered, how fast, and what was found. Only prompts that both have count."""
    texts_before, texts_after = before.answers.texts, after.answers.texts
    prompts = [prompt for prompt in texts_before if prompt in texts_after]
    facts_before = {"model": before.model, "build": before.build, **before.settings, **before.machine}
    facts_after = {"model": after.model, "build": after.build, **after.settings, **after.machine}
    return Verification(
        other_texts=[
            OtherText(prompt, texts_before[prompt], texts_after[prompt])
            for prompt in prompts
            if texts_before[prompt] != texts_after[prompt]
        ],
        num_texts=len(prompts),
        speeds=[
            _speed("first token", before.answers.first_token_seconds, after.answers.first_token_seconds),
            _speed("each further token", before.answers.token_seconds, after.answers.token_seconds),
        ],
        changes=[
            Change(name, facts_before.get(name, ""), facts_after.get(name, ""))
            for name in sorted(facts_before.keys() | facts_after.keys())
            if name not in _DIFFER_ANYWAY and facts_before.get(name, "") != facts_after.get(name, "")
        ],
        gone=[pitfall for pitfall in before.pitfalls if pitfall not in after.pitfalls],
        new=[pitfall for pitfall in after.pitfalls if pitfall not in before.pitfalls],
    )


_DIFFER_ANYWAY = frozenset({"address", "http-address"})
"""A worker that the doctor starts takes any free port."""


def _speed(name: str, before: list[float], after: list[float]) -> Speed:
    return Speed(
        name,
        statistics.median(before),
        statistics.median(after),
        (min(before), max(before)),
        (min(after), max(after)),
    )
