"""Pages that say which test shows what name files and functions that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [f"S{number:02}" for number in range(1, 31)]
REFERENCE = re.compile(r"`((?:tests|worker|prefixcache|client)/[\w/]+\.\w+)(?:::(\w+))?`")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("name", ["seed.md", "long_contexts.md", "numbers.md"])
def test_every_file_and_function_of_the_page_is_there(name: str):
    references = REFERENCE.findall(page(name))
    assert len(references) == len(re.findall(r"`(?:tests|worker|prefixcache|client)/[^`]+`", page(name))) >= 5
    missing = [
        (path, function)
        for path, function in references
        if not (ROOT / path).is_file() or (function and function not in functions_of(ROOT / path))
    ]
    assert not missing


def test_every_row_says_where_it_is_built_and_what_shows_it():
    rows = re.findall(r"^\| (S\d\d) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", page("seed.md"), re.MULTILINE)
    assert [row for row, _, _ in rows] == ROWS
    for row, built_in, shown_by in rows:
        assert REFERENCE.search(built_in), row
        assert any(path.startswith("tests/") for path, _ in REFERENCE.findall(shown_by)), row
