"""Imports point one way, and the cache stays light."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE, WORKER, CLIENT = (
    ROOT / "prefixcache",
    ROOT / "worker" / "prefixcache_worker",
    ROOT / "client" / "prefixcache_client",
)
OURS = ("prefixcache", "prefixcache_worker", "prefixcache_client")


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            # `from prefixcache import v1` imports the module prefixcache.v1
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(folder: Path, *, without: Path | None = None) -> dict[str, set[str]]:
    """The files of a package, and what each imports."""
    files = {
        str(path.relative_to(ROOT)): set(imported_modules(path))
        for path in folder.rglob("*.py")
        if without is None or without not in path.parents
    }
    assert files
    return files


def is_within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_the_cache_imports_two_libraries_and_itself() -> None:
    import sys

    allowed = {*sys.stdlib_module_names, "xxhash", "sortedcontainers", "prefixcache"}
    for file, modules in imports_of(CACHE, without=CACHE / "v1").items():
        foreign = {module for module in modules if module.split(".")[0] not in allowed}
        assert not foreign, file
        assert not any(is_within(module, "prefixcache.v1") for module in modules), file


def test_the_stubs_import_neither_the_cache_nor_its_users() -> None:
    for file, modules in imports_of(CACHE / "v1").items():
        ours = {module for module in modules if is_within(module, *OURS)}
        assert all(is_within(module, "prefixcache.v1") for module in ours), file


def test_the_worker_does_not_import_the_client() -> None:
    for file, modules in imports_of(WORKER).items():
        assert not any(is_within(module, "prefixcache_client") for module in modules), file


def test_the_client_does_not_import_the_worker() -> None:
    """It may use the cache itself: `prefixcache replay` needs no worker."""
    for file, modules in imports_of(CLIENT).items():
        assert not any(is_within(module, "prefixcache_worker") for module in modules), file


@pytest.mark.parametrize(
    "statement", ["import torch", "from torch import nn", "import prefixcache_worker.engine"]
)
def test_a_back_edge_would_be_seen(statement: str, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(f"def late():\n    {statement}\n", encoding="utf-8")
    assert any(is_within(module, "torch", "prefixcache_worker") for module in imported_modules(file))
