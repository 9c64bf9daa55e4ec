"""The pages of docs/pitfalls: all five parts, everything they name is there, and every fault has one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from prefixcache_worker.faults.planting import FAULTS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "pitfalls"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
PARTS = ["Symptom", "Search", "Cause", "Fix", "Proof"]
FILE = re.compile(r"`((?:tests|worker|prefixcache|client|docs)/[\w/]+\.\w+)(?:::(\w+))?`")
ANY_FILE = re.compile(r"`(?:tests|worker|prefixcache|client|docs)/[^`]+`")


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


@cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def pitfalls_of_findings() -> Iterator[str]:
    """The pages that the doctor's findings may name: strings of what is called a pitfall in its source."""
    for path in (ROOT / "client" / "prefixcache_client" / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(arg="pitfall", value=value):
                    yield from names_in(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if "pitfall" in name.lower():
                    yield from names_in(value)
                case ast.FunctionDef(name=name) if "pitfall" in name:
                    yield from names_in(node)


def names_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and re.fullmatch(r"[a-z]+(-[a-z]+)+", str(part.value)):
            yield part.value


def test_every_fault_has_a_page_and_the_index_has_every_page():
    assert set(FAULTS) <= set(PAGES)
    assert sorted(re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \|", text_of("README"), re.MULTILINE)) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_five_parts_and_something_in_each(page: str):
    title, *parts = re.split(r"^## ", text_of(page), flags=re.MULTILINE)
    assert title.startswith(f"# {page}\n\n")
    assert [part.partition("\n")[0] for part in parts] == PARTS
    assert all(part.partition("\n")[2].strip() for part in parts)
    assert "```" in parts[1], "how it was found is a command and what it said"


@pytest.mark.parametrize("page", [*PAGES, "README"])
def test_every_file_and_function_of_a_page_is_there(page: str):
    references = FILE.findall(text_of(page))
    assert len(references) == len(ANY_FILE.findall(text_of(page))) >= 1
    missing = [
        (path, function)
        for path, function in references
        if not (ROOT / path).is_file() or (function and function not in functions_of(ROOT / path))
    ]
    assert not missing


def test_every_finding_of_the_doctor_names_a_page_and_every_fault_has_a_finding():
    assert set(FAULTS) <= set(pitfalls_of_findings()) <= set(PAGES)
