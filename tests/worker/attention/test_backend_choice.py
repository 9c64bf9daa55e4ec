"""Which backend runs, with and without a compiler."""

import logging
import subprocess

import pytest

from prefixcache_worker import native_library
from prefixcache_worker.attention import native
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.cpu import CpuAttention
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    """No kernel is loaded, and none is built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native._library.cache_clear()
    yield tmp_path
    native._library.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch, fresh_library):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native_library, "COMPILERS", ("no-such-compiler",))


def pool(head_dim: int = 8) -> KvStore:
    shape = AttentionShape(num_layers=1, num_query_heads=2, num_kv_heads=1, head_dim=head_dim)
    return KvStore(shape, num_blocks=2, block_size=16)


def test_without_a_compiler_torch_serves(no_compiler, caplog):
    caplog.set_level(logging.INFO)
    assert choose_backend("auto", pool()) is CpuAttention
    assert "no C++ compiler" in caplog.text


def test_native_without_a_compiler_says_what_to_do(no_compiler):
    with pytest.raises(ConfigError, match=r"--attention native: there is no C\+\+ compiler; install one"):
        choose_backend("native", pool())


def test_a_compiler_that_fails_leaves_nothing_behind(monkeypatch, fresh_library):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ConfigError, match="false failed"):
        choose_backend("native", pool())
    assert not list(fresh_library.rglob("*.so"))
    assert not list((fresh_library / "prefixcache").iterdir())


def test_a_built_file_that_is_no_library_is_named(monkeypatch, fresh_library):
    def write_nonsense(command, **options):
        path = command[command.index("-o") + 1] if "-o" in command else None
        if path:
            with open(path, "w") as file:
                file.write("not a library")
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.setenv("CXX", "true")
    monkeypatch.setattr(native_library.subprocess, "run", write_nonsense)
    with pytest.raises(ConfigError, match=r"attention_kernel-.*\.so cannot be loaded"):
        choose_backend("native", pool())


def test_torch_is_taken_when_asked_for():
    assert choose_backend("torch", pool()) is CpuAttention


def test_native_refuses_what_the_kernel_cannot_do():
    shape = AttentionShape(num_layers=1, num_query_heads=2, num_kv_heads=1, head_dim=8)
    store = KvStore(shape, num_blocks=2, block_size=16, device="meta")
    with pytest.raises(ConfigError, match=r"runs on a CPU, not on meta"):
        choose_backend("native", store)
    assert choose_backend("auto", store) is CpuAttention
