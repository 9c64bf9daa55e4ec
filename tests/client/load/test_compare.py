"""Two measurements side by side."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import pytest
from rich.console import Console
from support.measurements import answered, failed, measurement

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.report.compare import ComparedFigure, Comparison, compare
from prefixcache_client.load.report.comparison_view import comparison_view
from prefixcache_client.load.report.slo import Slo


def load(
    *, seed: int, slower: float = 1.0, num_sessions: int = 100, turns: int = 2, cached: int | None = 50
) -> Measurement:
    """Sessions whose latencies vary by themselves, and `slower` times as slow."""
    draw = random.Random(seed)
    return measurement(
        [
            answered(
                session=session,
                turn=turn,
                planned=session / 10 + turn,
                first_token_seconds=slower * draw.uniform(0.1, 0.3),
                gaps=[slower * draw.uniform(0.01, 0.03) for _ in range(5)],
                cached_tokens=cached,
            )
            for session in range(num_sessions)
            for turn in range(turns)
        ]
    )


def figure(comparison: Comparison, name: str) -> ComparedFigure:
    return next(figure for figure in comparison.figures if figure.name == name)


def test_a_slower_server_is_told_from_chance() -> None:
    comparison = compare(load(seed=1), load(seed=2, slower=1.5))

    mean = figure(comparison, "first token, mean")
    assert mean.first == pytest.approx(0.2, rel=0.1)
    assert mean.difference == pytest.approx(0.1, rel=0.2)
    assert mean.interval is not None
    assert mean.interval.low < 0.1 < mean.interval.high
    assert mean.is_shown
    assert comparison.warnings == ()


def test_chance_alone_is_no_difference() -> None:
    comparison = compare(load(seed=1), load(seed=2))

    shown = [figure.name for figure in comparison.figures if figure.is_shown]
    assert shown == []


def test_a_measurement_does_not_differ_from_itself() -> None:
    comparison = compare(load(seed=1), load(seed=1))

    for each in comparison.figures:
        assert each.difference == 0
        assert each.interval is None or each.interval.low <= 0 <= each.interval.high


def test_with_few_sessions_there_is_no_interval() -> None:
    few = load(seed=1, num_sessions=19, turns=10)

    for each in compare(few, load(seed=2)).figures:
        assert each.interval is None
        assert each.remark in ("it needs 20 sessions in both", "one value of each measurement")


def test_a_high_percentile_needs_many_answers() -> None:
    comparison = compare(load(seed=1, turns=4), load(seed=2, turns=5))

    assert figure(comparison, "end to end, p90").interval is not None
    assert figure(comparison, "end to end, p99").interval is None
    assert figure(comparison, "end to end, p99").remark == "it needs 500 answers in both"


def test_shares_are_compared_too() -> None:
    first, second = load(seed=1, cached=50), load(seed=2, cached=80)
    second = replace(second, results=(*second.results, *(failed("429", session=i) for i in range(50))))

    comparison = compare(first, second, slo=Slo(total_seconds=1.0))

    cached, answers = figure(comparison, "cached share of the prompts"), figure(comparison, "answered")
    assert (cached.first, cached.second, cached.is_shown) == (0.5, 0.8, True)
    assert (answers.first, answers.second, answers.is_shown) == (1.0, 0.8, True)
    assert figure(comparison, "within the limits").is_shown


def test_what_one_side_does_not_tell_is_not_compared() -> None:
    cached = figure(compare(load(seed=1, cached=None), load(seed=2)), "cached share of the prompts")

    assert (cached.first, cached.difference, cached.interval) == (None, None, None)
    assert cached.remark == "not measured in both"


def test_settings_that_differ_are_listed() -> None:
    first = replace(load(seed=1), target={"kind": "prefixcache", "block_size": 16, "old": 1})
    second = replace(load(seed=2), target={"kind": "prefixcache", "block_size": 32, "new": "x"})

    comparison = compare(first, second)

    assert [(c.of, c.name, c.first, c.second) for c in comparison.changes] == [
        ("target", "block_size", 16, 32),
        ("target", "old", 1, None),
        ("target", "new", None, "x"),
    ]
    assert comparison.warnings == ()


@pytest.mark.parametrize("of", ["workload", "arrivals"])
def test_another_load_is_not_comparable(of: str) -> None:
    first, second = load(seed=1), load(seed=2)
    changed = replace(second, **{of: {**getattr(second, of), "users": 7}})

    assert compare(first, changed).warnings == (
        f"Not comparable: not the same {of} (users), so a difference need not come from the server.",
    )


def test_another_seed_is_comparable() -> None:
    first, second = load(seed=1), load(seed=2)
    changed = replace(second, workload={**second.workload, "seed": 99})

    comparison = compare(first, changed)

    assert comparison.warnings == ()
    assert [change.name for change in comparison.changes] == ["seed"]


def test_limits_that_a_load_took_over_from_its_server_are_comparable() -> None:
    first, second = (
        replace(
            load(seed=1),
            workload={"kind": "chat", "block_size": block_size},
            target={"kind": "prefixcache", "block_size": block_size},
        )
        for block_size in (16, 32)
    )

    comparison = compare(first, second)

    assert comparison.warnings == ()
    assert [change.of for change in comparison.changes] == ["workload", "target"]


def test_another_kind_of_load_on_another_kind_of_server_is_not_comparable() -> None:
    first = replace(load(seed=1), workload={"kind": "chat"}, target={"kind": "prefixcache"})
    second = replace(load(seed=1), workload={"kind": "agents"}, target={"kind": "openai"})

    (warning,) = compare(first, second).warnings

    assert warning.startswith("Not comparable: not the same workload (kind)")


def test_what_speaks_against_a_measurement_is_told() -> None:
    first = replace(load(seed=1), was_interrupted=True)
    second = load(seed=2)
    late = answered(session=0, late=0.1)
    second = replace(second, results=(*second.results, failed("429"), late))

    assert compare(first, second).warnings == (
        "The first measurement was broken off.",
        "In the second measurement 1 of 202 requests failed: its latencies are those of the others.",
        "In the second measurement 1 requests were sent late.",
    )


def test_the_same_seed_compares_the_same() -> None:
    first, second = load(seed=1, num_sessions=20), load(seed=2, num_sessions=20)

    comparison = compare(first, second, seed=3)

    assert comparison == compare(first, second, seed=3)
    assert comparison != compare(first, second, seed=4)


def test_measurements_of_nothing_can_be_compared() -> None:
    comparison = compare(measurement([]), measurement([failed("429")]))

    assert {figure.interval for figure in comparison.figures} == {None}


def test_the_table_says_what_is_shown_and_what_is_not() -> None:
    first = load(seed=1)
    second = replace(load(seed=2, slower=1.5), target={**first.target, "block_size": 32})
    screen = io.StringIO()
    Console(file=screen, width=140, markup=False).print(comparison_view(compare(first, second)))

    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert ["target", "block_size", "-", "32"] in lines
    (mean,) = (line for line in lines if line[:3] == ["first", "token,", "mean"])
    assert mean[-1] == "higher"
    (share,) = (line for line in lines if line[:2] == ["cached", "share"])
    assert share[-3:] == ["no", "difference", "shown"]
    (rate,) = (line for line in lines if line[:2] == ["output", "tokens"])
    assert rate[-7:] == ["no", "interval:", "one", "value", "of", "each", "measurement"]
