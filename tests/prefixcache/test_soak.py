"""The long random run itself: it ends well on the cache, and badly on one that is broken."""

import pytest
from soak_cache import main

from prefixcache.pins import PinTable


def test_a_short_soak_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--operations", "4500", "--seed", "20"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("4,500 operations, seed 20\n")
    assert output.endswith("3 caches did what the oracle says, 4,500 times\n")


def test_a_broken_cache_ends_it_with_1_and_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PinTable, "hit", lambda self, end, partial: None)
    assert main(["--operations", "20000", "--seed", "7"]) == 1
    output = capsys.readouterr().out
    assert "CacheSettings(num_blocks=" in output
    command = output.rsplit("ARGS='")[1].split("'")[0]
    assert main(command.split()) == 1
