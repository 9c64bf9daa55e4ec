"""What somebody sees who starts a worker that cannot serve: one sentence and the exit code."""

from __future__ import annotations

import socket
from pathlib import Path

import gguf
import pytest

from prefixcache_worker.__main__ import main
from prefixcache_worker.model.default_model import default_model_path


def sentence_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a start that fails with exit code 1 and prints nothing else."""
    assert main(["--address", "127.0.0.1:0", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line


def test_a_bad_setting(capsys: pytest.CaptureFixture[str]):
    assert sentence_of(["--block-size", "24"], capsys) == (
        "prefixcache_worker: --block-size: '24' is not a power of two"
    )


def test_a_busy_port_is_named_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = sentence_of(["--address", address, "--model", "/never/opened.gguf"], capsys)
    assert line.startswith(f"prefixcache_worker: --address: cannot listen on {address}: ")
    assert "choose another address" in line


def test_a_missing_model_file(capsys: pytest.CaptureFixture[str]):
    assert "/no/such.gguf" in sentence_of(["--model", "/no/such.gguf"], capsys)


def test_a_model_file_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = default_model_path()
    size = whole.stat().st_size
    cut = tmp_path / "cut.gguf"
    for num_bytes in (100, 500_000, size - 1000):  # inside the header, the vocabulary, the last tensor
        with whole.open("rb") as file:
            cut.write_bytes(file.read(num_bytes))
        line = sentence_of(["--model", str(cut)], capsys)
        assert str(cut) in line
        assert "cut short" in line


def test_a_model_of_another_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    line = sentence_of(["--model", str(path)], capsys)
    assert str(path) in line
    assert "mamba" in line
    assert "llama" in line, "what is supported instead"
