"""`prefixcache plan`, as people and scripts read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache_worker.plan_command import main

SEVEN_BILLION = ["--layers", "32", "--kv-heads", "32", "--head-dim", "128"]
ARTICLE = [*SEVEN_BILLION, "--memory", "24GiB", "--weights-memory", "14GiB"]


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json", "-"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_s02_the_founding_article_s_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARTICLE) == 0

    text = capsys.readouterr().out
    assert "KV in fp16: 524,288 bytes a token; 2,048 tokens take 1GiB" in text
    assert "Memory: 24GiB, weights 14GiB, left for KV 10GiB" in text
    assert [line.split() for line in text.splitlines() if line.startswith("contiguous")] == [
        ["contiguous", "1GiB", "0%", "10", "8"]
    ]


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    plan = figures(capsys, *ARTICLE)
    assert (plan["token_bytes"], plan["longest_request_bytes"]) == (524_288, 1 << 30)
    assert plan["schemes"]["contiguous"]["requests"] == 10
    assert plan["formats"]["int8/token-head"]["token_bytes"] == 2 * 32 * 32 * (128 + 2)


def test_what_sharing_saves(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        *ARTICLE,
        "--tokens",
        "2048",
        "--prefix-tokens",
        "1024",
        "--requests",
        "8",
        "--block-size",
        "16",
    ]
    plan = figures(capsys, *arguments)
    assert plan["sharing"] == {
        "prefix_tokens": 1024,
        "requests": 8,
        "shared_blocks": 64,
        "saved_bytes": 7 * 1024 * 524_288,
    }
    assert main(arguments) == 0
    assert "among 8 requests: 4.5GiB in place of 8GiB, 44% less" in capsys.readouterr().out


def test_the_proposal_is_for_the_peak_and_half_as_much_again(capsys: pytest.CaptureFixture[str]) -> None:
    plan = figures(capsys, *ARTICLE, "--tokens", "1024", "--requests", "8", "--block-size", "16")
    assert plan["proposal"]["kv_blocks"] == 1.5 * 8 * 64
    assert plan["proposal"]["fits"]


def test_a_peak_that_there_is_no_room_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARTICLE, "--requests", "9", "--block-size", "16"]) == 0
    text = capsys.readouterr().out
    assert "--kv-blocks 1024 --kv-headroom 0.25" in text  # 8 GiB of 8 MiB blocks
    assert "all there is room for; 9 requests at once hold 9GiB" in text


def test_without_a_peak_as_many_are_planned_as_the_pool_has_room_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = figures(capsys, *ARTICLE)
    assert plan["proposal"]["peak_requests"] == 5  # 8 GiB before headroom hold 1.5 x 5.33 of 1 GiB
    assert plan["proposal"]["fits"]


def test_the_built_in_model_is_planned_without_any_option(capsys: pytest.CaptureFixture[str]) -> None:
    plan = figures(capsys)
    assert (plan["num_layers"], plan["num_kv_heads"], plan["head_dim"]) == (30, 3, 64)
    assert plan["token_bytes"] == 23_040


def test_a_file_gets_the_figures_and_the_screen_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARTICLE, "--json", str(tmp_path / "plan.json")]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())["token_bytes"] == 524_288
    assert "524,288 bytes a token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            [*SEVEN_BILLION, "--memory", "14GiB", "--weights-memory", "14GiB"],
            "leave 0B, which is less than one",
        ),
        (["--memory", "4GiB", "--tokens", "9000"], "9000 are more than the 8192 that the model knows"),
        (["--model", "nowhere.gguf"], "nowhere.gguf: no such file or folder"),
        ([*ARTICLE, "--kv-scales", "head"], "only int8 and int4 have scales"),
        ([*ARTICLE, "--json", "/nowhere/plan.json"], "No such file or directory"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("prefixcache plan: ")
    assert printed.err.count("\n") == 1
    assert sentence in printed.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (SEVEN_BILLION, "say how much the weights take"),
        (["--layers", "32"], "a shape is --layers, --kv-heads and --head-dim together"),
        ([*SEVEN_BILLION, "--model", "m"], "give a model or a shape, not both"),
        ([*ARTICLE, "--memory", "much"], "must be a memory size such as 24GiB, got 'much'"),
        ([*ARTICLE, "--tokens", "9" * 30], "must be less than 1,152,921,504,606,846,976, got '999"),
        ([*ARTICLE, "--tokens", "0"], "must be a whole number of at least 1, got '0'"),
        ([*ARTICLE, "--block-size", "24"], "must be a power of two, got '24'"),
        ([*ARTICLE, "--headroom", "-1"], "must be a number of at least 0, got '-1'"),
        ([*ARTICLE, "--mean-tokens", "4096"], "4096 are more than the 2048 of the longest request"),
        ([*ARTICLE, "--prefix-tokens", "4096"], "4096 are more than the 2048 of a request"),
    ],
)
def test_wrong_usage_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err
