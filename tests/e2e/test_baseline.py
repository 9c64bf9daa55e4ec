"""Baselines of real workers: recorded, compared, and what stands in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.process_worker import tiny_model_folder

from prefixcache_client.baseline.recording import FIGURES, read_recording
from prefixcache_client.command_line import main as command_line

SCENARIOS = "short, single; short, many; long, single"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a worker that is started: a context of 256 tokens, for which "long, single" is too long."""
    model = tiny_model_folder(tmp_path_factory.mktemp("baseline") / "model")
    return [
        "--worker",
        "--model",
        str(model),
        "--num-threads",
        "1",
        "--attention",
        "torch",
        "--kv-blocks",
        "300",
    ]


def record(path: Path, options: list[str], arguments: list[str]) -> int:
    command = ["baseline", "record", str(path), "--rounds", "2", "--scenarios", SCENARIOS]
    return command_line.main([*command, *options, *arguments])


def test_two_baselines_are_recorded_and_compared(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    assert record(before, ["--label", "plain"], arguments) == 0
    assert "baseline: plain, 2 rounds" in capsys.readouterr().out
    assert record(after, ["--label", "plain"], [*arguments, "--kv-dtype", "int8"]) == 0
    capsys.readouterr()

    recording = read_recording(before)
    assert [rounds.scenario.name for rounds in recording.rounds] == ["short, single", "short, many"]
    assert recording.settings["block-size"] == "16"
    assert recording.machine["cpu"]
    for rounds in recording.rounds:
        assert set(rounds.values) == {kind.name for kind in FIGURES}
        assert all(len(values) == 2 and min(values) > 0 for values in rounds.values.values())
    [single, many] = (rounds.values["pool in use"] for rounds in recording.rounds)
    assert single == (8 / 375, 8 / 375)  # 128 tokens, of which the last is never stored, in a pool of 375
    assert all(8 / 375 < share <= 256 / 375 for share in many)  # the first may end before the last comes

    assert command_line.main(["baseline", "compare", str(before), str(after), "--json", "-"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert [change["name"] for change in comparison["changes"]] == ["--kv-dtype"]
    held = next(f for f in comparison["figures"] if f["figure"] == "KV held")
    assert (held["effect"], held["ratio"]) == (
        "better",
        (8 + 2) / (4 * 8),
    )  # a scale of 2 bytes for 8 elements


def test_a_file_is_not_overwritten_by_accident(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "before.json"
    path.write_text("precious")
    assert record(path, [], arguments) == 1
    assert "exists: name another file, or replace it with --force" in capsys.readouterr().err
    assert path.read_text() == "precious"


def test_a_target_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(tmp_path / "b.json", ["--target", "127.0.0.1:9"], []) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("prefixcache: no worker answers at 127.0.0.1:9")
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--rounds", "1"], "must be at least 2: one value has no spread"),
        (["--scenarios", "tall"], "must be some of short, single;"),
        (["--tls"], "are for a --target"),
        (
            ["--target", "127.0.0.1:9", "--worker", "--kv-blocks", "9"],
            "for a worker that is started, not for --target",
        ),
    ],
)
def test_wrong_usage_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["baseline", "record", str(tmp_path / "b.json"), *options])
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err
