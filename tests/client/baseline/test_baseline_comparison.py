"""Baselines compared: what may be credited to what."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_client.baseline.comparison import Effect, compare
from prefixcache_client.baseline.recording import (
    FIGURES,
    Interval,
    Recording,
    ScenarioRounds,
    interval,
    read_recording,
)
from prefixcache_client.baseline.scenario import MATRIX, Scenario, fitting
from prefixcache_client.command_line import main as command_line
from prefixcache_client.errors import PrefixCacheClientError

ONE = MATRIX[0]


def recording(speed: float = 100.0, *, scenario: Scenario = ONE, **changes: Any) -> Recording:
    """Three rounds that differ by one percent; `speed` is the output's tokens/s."""
    around = (0.99, 1.0, 1.01)
    values = {kind.name: tuple(0.5 * factor for factor in around) for kind in FIGURES}
    values["output"] = tuple(speed * factor for factor in around)
    fields: dict[str, Any] = {
        "label": "",
        "began": "2026-11-30T00:00:00+00:00",
        "settings": {"kv-dtype": "fp32", "address": "127.0.0.1:1"},
        "machine": {"cpu": "a", "torch": "2.13.0", "threads": "2"},
        "model": {"name": "m", "num_blocks": 5},
        "read_bytes_per_second": (1e10, 1.01e10, 0.99e10),
        "rounds": (ScenarioRounds(scenario=scenario, values=values),),
    }
    return Recording(**(fields | changes))


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 19, 28])
def test_an_interval_is_student_s(freedom: int) -> None:
    """Its half is t standard errors, and between -t and t lie 95 % of the distribution."""
    n = freedom + 1
    values = [float(i) for i in range(n)]
    mean = sum(values) / n
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    t = (interval(values).high - mean) / error

    def density(x: float) -> float:
        factor = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
        return factor * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

    steps = 20_000
    width = 2 * t / steps
    inside = sum(density(-t + (i + 0.5) * width) for i in range(steps)) * width
    assert inside == pytest.approx(0.95, abs=2e-4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_an_interval_lies_around_its_mean(values: list[float]) -> None:
    mean, low, high = interval(values)
    assert low <= mean <= high
    assert not Interval(mean, low, high).parts_from(Interval(mean, mean, mean))


def test_one_change_is_credited_when_the_intervals_part() -> None:
    comparison = compare(recording(100), recording(200, settings={"kv-dtype": "int8"}))

    assert comparison.credited is not None
    assert str(comparison.credited) == "--kv-dtype: fp32 -> int8"
    assert comparison.verdict == "Credited to the one change, --kv-dtype: fp32 -> int8."
    [output] = [figure for figure in comparison.figures if figure.effect is not Effect.NONE]
    assert (output.kind.name, output.effect, output.ratio) == ("output", Effect.BETTER, pytest.approx(2))


def test_s27_nothing_is_credited_when_two_settings_changed() -> None:
    settings = {"kv-dtype": "int8", "weights": "int8"}
    comparison = compare(recording(100), recording(200, settings=settings))

    assert comparison.credited is None
    assert [change.name for change in comparison.changes] == ["--kv-dtype", "--weights"]
    assert "2 things changed at once" in comparison.verdict


def test_nothing_is_credited_when_the_intervals_have_values_in_common() -> None:
    comparison = compare(recording(100), recording(101, settings={"kv-dtype": "int8"}))
    assert comparison.credited is None
    assert comparison.verdict.startswith("No difference shown")


def test_nothing_is_credited_when_no_setting_changed() -> None:
    comparison = compare(recording(100), recording(50))
    assert comparison.credited is None
    assert comparison.figures[0].effect is Effect.WORSE
    assert "the figures differ, and no setting does" in comparison.verdict


def test_nothing_is_credited_when_the_machine_ran_at_another_speed() -> None:
    slower = recording(200, settings={"kv-dtype": "int8"}, read_bytes_per_second=(5e9, 5.1e9, 4.9e9))
    comparison = compare(recording(100), slower)
    assert comparison.credited is None
    assert "10.0 and 5.0 GB/s" in comparison.verdict


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"machine": {"cpu": "b", "torch": "2.13.0", "threads": "2"}}, "cpu"),
        ({"model": {"name": "other", "num_blocks": 5}}, "model"),
        ({"label": "another kernel"}, "label"),
    ],
)
def test_machine_model_and_label_count_as_changes(change: dict[str, Any], name: str) -> None:
    comparison = compare(recording(100), recording(200, **change))
    assert [c.name for c in comparison.changes] == [name]
    assert comparison.credited == comparison.changes[0]


def test_places_and_consequences_are_no_changes() -> None:
    other = recording(
        settings={"kv-dtype": "fp32", "address": "127.0.0.1:2"},
        machine={"cpu": "a", "torch": "2.13.0", "threads": "1"},
        model={"name": "m", "num_blocks": 9},
    )
    assert compare(recording(), other).changes == ()


def test_another_model_is_one_change() -> None:
    other = recording(settings={"kv-dtype": "fp32", "model": "other.gguf"}, model={"name": "other"})
    assert [change.name for change in compare(recording(), other).changes] == ["--model"]


def test_scenarios_that_are_not_the_same_are_left_out() -> None:
    changed = recording(scenario=replace(ONE, prompt_tokens=ONE.prompt_tokens + 1))
    comparison = compare(recording(), changed)
    assert comparison.figures == ()
    assert comparison.only_in_one == (ONE.name,)


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    recording(7).write(path)
    assert read_recording(path) == recording(7)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "other"}', "\xff", '{"format": 3, "rounds": 1}']
)
def test_another_file_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(PrefixCacheClientError, match=r"a\.json is no baseline of this release"):
        read_recording(path)


def test_compare_prints_the_verdict_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    recording(100).write(before)
    recording(200, label="another kernel").write(after)

    assert command_line.main(["baseline", "compare", str(before), str(after)]) == 0
    text = capsys.readouterr().out
    assert "changed  label: not set -> another kernel" in text
    assert "Credited to the one change" in text

    assert command_line.main(["baseline", "compare", str(before), str(after), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["credited"]["after"] == "another kernel"


@given(scenario=st.sampled_from(MATRIX), seed=st.text(max_size=5), vocabulary=st.integers(2, 60_000))
def test_prompts_are_as_long_and_as_shared_as_they_say(
    scenario: Scenario, seed: str, vocabulary: int
) -> None:
    prompts = scenario.prompts(vocabulary, seed)
    assert prompts == scenario.prompts(vocabulary, seed)
    assert len(prompts) == scenario.num_requests
    assert {len(prompt) for prompt in prompts} == {scenario.prompt_tokens}
    assert len({tuple(prompt[: scenario.shared_tokens]) for prompt in prompts}) == 1
    assert all(0 <= token_id < vocabulary for prompt in prompts for token_id in prompt)


def test_scenarios_beyond_the_context_are_left_out() -> None:
    assert fitting(MATRIX, 200) == [scenario for scenario in MATRIX if scenario.num_tokens <= 200]
    assert {scenario.num_requests for scenario in fitting(MATRIX, 10_000)} >= {1, 2, 4, 8, 16, 32}
