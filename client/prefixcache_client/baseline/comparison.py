"""Two baselines side by side: what differs between them, and what may be said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from prefixcache_client.baseline.recording import FIGURES, FigureKind, Interval, Recording, interval

_PLACES = frozenset({"address", "http-address"})
"""Settings that say where a worker listens, not what it does."""
_MACHINE = ("release", "python", "torch", "cpu", "cores", "memory_bytes")
"""What no setting of the worker decides."""


class Change(NamedTuple):
    """Something that is not the same in both."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before or 'not set'} -> {self.after or 'not set'}"


class Effect(Enum):
    """What became of a figure."""

    NONE = "not shown"
    """That there is a difference: the intervals have values in common."""
    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"
    """The intervals part, and neither way is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """One figure of one scenario."""

    scenario: str
    kind: FigureKind
    before: Interval
    after: Interval

    @property
    def effect(self) -> Effect:
        if not self.before.parts_from(self.after):
            return Effect.NONE
        if self.kind.more_is_better is None:
            return Effect.CHANGED
        is_more = self.after.mean > self.before.mean
        return Effect.BETTER if is_more is self.kind.more_is_better else Effect.WORSE

    @property
    def ratio(self) -> float | None:
        """After over before; None: before was 0."""
        return self.after.mean / self.before.mean if self.before.mean else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """What two recordings say about each other."""

    changes: tuple[Change, ...]
    """Of settings, machine, model and label."""
    figures: tuple[FigureChange, ...]
    """Of the scenarios that both have."""
    only_in_one: tuple[str, ...]
    """Names of scenarios that only one has, or that are not the same in both."""
    speed_before: Interval
    """Of the machine's memory, bytes in a second."""
    speed_after: Interval

    @property
    def machine_changed(self) -> bool:
        """Whether the machine itself ran at another speed: its memory, which no setting decides."""
        return self.speed_before.parts_from(self.speed_after)

    @property
    def credited(self) -> Change | None:
        """What the differences may be put down to: the one thing that changed. None: to nothing."""
        if len(self.changes) == 1 and not self.machine_changed and self.has_effect:
            return self.changes[0]
        return None

    @property
    def has_effect(self) -> bool:
        """Whether any figure differs."""
        return any(figure.effect is not Effect.NONE for figure in self.figures)

    def as_json(self) -> dict[str, object]:
        """Everything that is said."""
        return {
            "changes": [change._asdict() for change in self.changes],
            "figures": [
                {
                    "scenario": figure.scenario,
                    "figure": figure.kind.name,
                    "unit": figure.kind.unit,
                    "before": figure.before._asdict(),
                    "after": figure.after._asdict(),
                    "ratio": figure.ratio,
                    "effect": figure.effect.value,
                }
                for figure in self.figures
            ],
            "only_in_one": list(self.only_in_one),
            "machine_changed": self.machine_changed,
            "credited": None if self.credited is None else self.credited._asdict(),
            "verdict": self.verdict,
        }

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.has_effect:
            return "No difference shown: all intervals have values in common. More rounds make them narrower."
        if self.machine_changed:
            return (
                "Nothing is credited: the machine's memory was not as fast in one as in the other "
                f"({self.speed_before.mean / 1e9:.1f} and {self.speed_after.mean / 1e9:.1f} GB/s). "
                "Record both again, one right after the other."
            )
        if not self.changes:
            return (
                "Nothing is credited: the figures differ, and no setting does. What changed is outside: "
                "record again, and give --label if it was the code."
            )
        if len(self.changes) > 1:
            return (
                f"Nothing is credited: {len(self.changes)} things changed at once. Change one, record, "
                "and compare; then the next."
            )
        return f"Credited to the one change, {self.changes[0]}."


def compare(before: Recording, after: Recording) -> BaselineComparison:
    """Both recordings, scenario by scenario and setting by setting."""
    of_before = {rounds.scenario.name: rounds for rounds in before.rounds}
    of_after = {rounds.scenario.name: rounds for rounds in after.rounds}
    common = [
        name for name in of_before if name in of_after and of_before[name].scenario == of_after[name].scenario
    ]
    return BaselineComparison(
        changes=tuple(_changes(before, after)),
        figures=tuple(
            FigureChange(
                scenario=name,
                kind=kind,
                before=of_before[name].interval(kind.name),
                after=of_after[name].interval(kind.name),
            )
            for name in common
            for kind in FIGURES
        ),
        only_in_one=tuple(name for name in {**of_before, **of_after} if name not in common),
        speed_before=interval(before.read_bytes_per_second),
        speed_after=interval(after.read_bytes_per_second),
    )


def _changes(before: Recording, after: Recording) -> Iterator[Change]:
    """Consequences of a setting, such as the number of blocks, are no changes of their own."""
    settings = tuple(_differing("--", _without(before.settings), _without(after.settings)))
    yield from settings
    facts = [{name: recording.machine.get(name, "") for name in _MACHINE} for recording in (before, after)]
    yield from _differing("", *facts)
    if not any(change.name in ("--model", "--model-name") for change in settings):
        names = [{"model": str(recording.model.get("name", ""))} for recording in (before, after)]
        yield from _differing("", *names)
    yield from _differing("", {"label": before.label}, {"label": after.label})


def _without(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in _PLACES}


def _differing(prefix: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*before, *after}):
        values = before.get(name, ""), after.get(name, "")
        if values[0] != values[1]:
            yield Change(prefix + name, *values)
