"""A report that exists is not replaced by accident, whichever command would write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache_client.command_line import main as command_line

NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "chat", "--target", NOBODY, "--json"),
        ("bench", "chat", "--target", NOBODY, "--csv"),
        ("bench", "chat", "--target", NOBODY, "--html"),
        ("bench", "compare", "a.json", "b.json", "--json"),
        ("baseline", "record", "--target", NOBODY),
        ("baseline", "compare", "a.json", "b.json", "--json"),
        ("doctor", "--target", NOBODY, "--json"),
        ("doctor", "--target", NOBODY, "--trace"),
        ("doctor", "verify", "a.json", "b.json", "--json"),
        ("replay", "trace.jsonl", "--json"),
        ("replay", "trace.jsonl", "--csv"),
    ],
    ids=" ".join,
)
def test_it_is_named_in_one_sentence_before_any_work(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --force; with it, what the command needs is missed next."""
    path = tmp_path / "report"
    path.write_text("dear to somebody")

    assert command_line.main([*command, str(path)]) == 1
    sentence = f"prefixcache: {path} exists: name another file, or replace it with --force\n"
    assert capsys.readouterr().err == sentence

    assert command_line.main([*command, str(path), "--force"]) == 1
    assert "exists" not in capsys.readouterr().err
    assert path.read_text() == "dear to somebody"
