"""`prefixcache bench compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.measurements import answered, measurement

from prefixcache_client.command_line import main as command_line
from prefixcache_client.load.report.json_file import write_measurement
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import summarize


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two measurements; in the second, everything takes longer."""
    paths = [str(tmp_path / name) for name in ("first.json", "second.json")]
    for slower, path in enumerate(paths, start=1):
        whole = measurement(
            [
                answered(session=i, planned=i / 10, first_token_seconds=slower * (0.1 + i % 7 / 100))
                for i in range(50)
            ]
        )
        write_measurement(whole, summarize(whole, Slo()), path)
    return paths


def test_two_files_are_compared(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")

    assert command_line.main(["bench", "compare", *files]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (median,) = (line for line in lines if line[:3] == ["first", "token,", "p50"])
    assert median[3:9] == ["130", "ms", "260", "ms", "+130", "ms"]
    assert median[-1] == "higher"


def test_json_has_every_figure(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["bench", "compare", *files, "--json", "-"]) == 0

    comparison = json.loads(capsys.readouterr().out)
    median = next(figure for figure in comparison["figures"] if figure["name"] == "first token, p50")
    assert median["first"] == pytest.approx(0.13)
    assert median["interval"][0] > 0
    assert (comparison["changes"], comparison["confidence"]) == ([], 0.95)


def test_a_file_that_is_no_report_is_named(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")

    assert command_line.main(["bench", "compare", files[0], str(other)]) == 1
    assert command_line.main(["bench", "compare", str(tmp_path / "none.json"), files[1]]) == 1

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"prefixcache: {other} is no report of `prefixcache bench`: ")
    assert second.startswith("prefixcache: ")
    assert "none.json" in second


def test_two_files_are_needed(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command_line.main(["bench", "compare", files[0]])
    assert exit_.value.code == 2
    assert "SECOND" in capsys.readouterr().err
