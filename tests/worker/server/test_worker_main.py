"""What somebody sees whose worker does not come to serve: one sentence, or nothing, and the exit code."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
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
        "prefixcache serve: --block-size: '24' is not a power of two"
    )


def test_a_busy_port_is_named_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = sentence_of(["--address", address, "--model", "/never/opened.gguf"], capsys)
    assert line.startswith(f"prefixcache serve: --address: cannot listen on {address}: ")
    assert "choose another address" in line


def test_grpc_adds_no_line_of_its_own_about_a_busy_port():
    """In a real process, since gRPC writes past Python; by way of the command, which sets gRPC up too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "prefixcache_client.command_line.main", "serve", "--address", address],
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"prefixcache serve: --address: cannot listen on {address}: ")


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


def interrupt_after(line_part: str, *command: str) -> tuple[int, str, str]:
    """Send SIGINT when this is on stderr: the exit code, stdout, and what stderr had after the line."""
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any(line_part in line for line in process.stderr), "it ended before the line came"
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate()
        finally:
            process.kill()
    return process.returncode, stdout, stderr


@pytest.mark.parametrize("module", ["prefixcache_worker.errors", "torch._C", "grpc._cython.cygrpc"])
def test_an_interrupt_while_modules_are_imported_ends_it_quietly(module: str):
    """`python -v` tells of every import that is done; those around these modules are still under way."""
    command = ("-v", "-m", "prefixcache_worker", "--address", "127.0.0.1:0")
    status, stdout, stderr = interrupt_after(f"import '{module}' #", *command)
    assert (status, stdout) == (130, "")
    assert "KeyboardInterrupt" not in stderr


def test_an_interrupt_while_the_model_is_loaded_ends_it_quietly():
    """The warning is the last word before the loading, and there are none after it."""
    arguments = ["--address", "127.0.0.1:0", "--log-level", "warning", "--block-size", "8"]
    ended = interrupt_after("--block-size 8 is unusual", "-m", "prefixcache_worker", *arguments)
    assert ended == (130, "", "")
