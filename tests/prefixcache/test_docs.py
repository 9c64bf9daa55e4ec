"""The documents' programs do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from prefixcache import Departure

DOCS = Path(__file__).parents[2] / "docs"


def test_the_program_of_cache_md_prints_what_stands_behind_its_prints() -> None:
    program = re.findall(r"```python\n(.*?)```", (DOCS / "cache.md").read_text(), re.DOTALL)[0]
    expected = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert len(expected) == 4
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[:-1] == expected


def test_cache_md_has_every_cause_for_which_blocks_leave() -> None:
    causes = re.findall(r"^\| `([a-z_]+)` \| [a-z]", (DOCS / "cache.md").read_text(), re.MULTILINE)
    assert set(Departure) <= set(causes)
