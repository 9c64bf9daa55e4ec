"""Measurements as files."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from support.measurements import answered, any_measurements, failed, measurement, server_stats

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.report.csv_file import write_csv
from prefixcache_client.load.report.json_file import (
    MeasurementFileError,
    read_measurement,
    write_measurement,
)
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import summarize


def write(whole: Measurement, path: Path) -> None:
    write_measurement(whole, summarize(whole, Slo(total_seconds=1.0)), str(path))


@given(any_measurements())
def test_what_is_written_is_read_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, whole: Measurement
) -> None:
    path = tmp_path_factory.getbasetemp() / "measurement.json"
    write(whole, path)

    assert read_measurement(str(path)) == whole


def test_other_programs_find_the_summary_and_each_request(tmp_path: Path) -> None:
    write(measurement([answered(gaps=(0.25,)), failed("429")]), tmp_path / "m.json")

    content = json.loads((tmp_path / "m.json").read_text())
    assert (content["format"], content["version"]) == ("prefixcache-measurement", 1)
    assert content["summary"]["failures"] == {"429": 1}
    assert content["summary"]["latencies"]["total"]["max"] == 0.75
    assert content["summary"]["slo"]["total_seconds"] == 1.0
    assert [result["error"] for result in content["measurement"]["results"]] == [None, "429"]


def test_each_request_has_a_line_of_its_own(tmp_path: Path) -> None:
    write(measurement([answered() for _ in range(100)]), tmp_path / "m.json")

    lines = (tmp_path / "m.json").read_text().splitlines()
    assert sum(line.startswith('{"session": ') for line in lines) == 100


def test_a_dash_means_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    whole = measurement([answered()])
    write_measurement(whole, summarize(whole, Slo()), "-")

    assert json.loads(capsys.readouterr().out)["measurement"]["num_planned"] == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is no report of `prefixcache bench`: Expecting value"),
        (b"\xff\xfe\x00", "is no report of `prefixcache bench`"),
        (b"[1, 2]", "does not say that its format is prefixcache-measurement"),
        (b'{"format": "other"}', "does not say that its format is prefixcache-measurement"),
        (b'{"format": "prefixcache-measurement", "version": 2}', "version 2, and only version 1 can be read"),
        (b'{"format": "prefixcache-measurement", "version": 1}', "damaged report: measurement is no object"),
    ],
)
def test_any_other_file_is_refused_with_one_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "m.json").write_bytes(content)

    with pytest.raises(MeasurementFileError, match=reason) as raised:
        read_measurement(str(tmp_path / "m.json"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("seconds",), "1.0", "measurement.seconds is '1.0'"),
        (("seconds",), True, "measurement.seconds is True"),
        (("results", 1, "sent"), None, r"measurement.results\[1\].sent is None"),
        (("results", 0, "token_gaps", 0), "x", r"measurement.results\[0\].token_gaps\[0\] is 'x'"),
        (("stats_after", "tokens", "prompt"), 1.5, "measurement.stats_after.tokens.prompt is 1.5"),
        (("stats_after", "tokens"), {}, "measurement.stats_after.tokens lacks prompt, cached, computed"),
        (("workload", "seed"), [1], r"measurement.workload.seed is \[1\]"),
        (("num_planned",), "many", "measurement.num_planned is 'many'"),
        (("results",), {}, "measurement.results is {}"),
        (("seconds",), math.nan, "measurement.seconds is nan"),
        (("seconds",), 10**400, "measurement.seconds is 1000"),
        (("results", 0, "planned"), -math.inf, r"measurement.results\[0\].planned is -inf"),
        (("results", 0, "output_tokens"), 10**400, r"measurement.results\[0\].output_tokens is 1000"),
        (("target", "model"), "half\ud800", r"measurement.target.model is 'half\\ud800'"),
        (("target", "\ud800"), "x", r"a name in measurement.target is '\\ud800'"),
    ],
)
def test_a_damaged_report_is_refused_by_the_name_of_the_field(
    tmp_path: Path, place: tuple[str | int, ...], value: Any, reason: str
) -> None:
    stats = server_stats()
    path = tmp_path / "m.json"
    write(measurement([answered(gaps=(0.1,)), answered()], stats_before=stats, stats_after=stats), path)
    content = json.loads(path.read_text())
    inner = content["measurement"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))

    with pytest.raises(MeasurementFileError, match=f"is a damaged report: {reason}"):
        read_measurement(str(path))


def test_the_table_has_a_line_for_each_request(tmp_path: Path) -> None:
    write_csv(
        measurement(
            [
                answered(session=3, tenant='ac,"me', planned=1.0, late=0.5, gaps=(0.25,), cached_tokens=7),
                failed("429", planned=2.0),
            ]
        ),
        str(tmp_path / "m.csv"),
    )

    with open(tmp_path / "m.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "session": "3",
        "turn": "0",
        "tenant": 'ac,"me',
        "planned": "1.0",
        "sent": "1.5",
        "first_token": "1.5",
        "ended": "1.75",
        "late_seconds": "0.5",
        "first_token_seconds": "0.5",
        "seconds_per_token": "0.25",
        "total_seconds": "0.75",
        "prompt_tokens": "100",
        "cached_tokens": "7",
        "output_tokens": "2",
        "error": "",
    }
    assert (second["error"], second["first_token_seconds"], second["total_seconds"]) == ("429", "", "0.25")
