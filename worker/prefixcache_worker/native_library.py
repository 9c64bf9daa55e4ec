"""Builds C++ kernels for this machine, where there is a compiler, and keeps them."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared")
BUILD_SECONDS = 120.0

logger = logging.getLogger(__name__)


class NativeLibraryError(Exception):
    """The kernel cannot be built or loaded here; says why."""


def load_library(source: Path) -> ctypes.CDLL:
    """The compiled kernel. Builds it once for each version of source, compiler and processor (seconds).

    Requires torch to be loaded, whose OpenMP threads it then shares. Raises NativeLibraryError.
    """
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), *COMPILERS])), None)
    if compiler is None:
        raise NativeLibraryError("there is no C++ compiler; install one, for example g++")
    path = _cache_folder() / f"{source.stem}-{_fingerprint(source, compiler)}.so"
    if not path.exists():
        _build(source, compiler, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(f"{path} cannot be loaded: {error}") from error


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "prefixcache"


def _fingerprint(source: Path, compiler: str) -> str:
    """What the binary depends on: -march=native makes it unfit for a processor with other features."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else [platform.processor()]
    features = next(
        (line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else ""
    )
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    headers = sorted(source.parent.glob("*.h"))  # whether or not it includes them
    texts = [path.read_text() for path in (source, *headers)]
    parts = (*texts, version, features, *FLAGS)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(source: Path, compiler: str, path: Path) -> None:
    """Compile aside and rename, so that nobody ever loads half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = Path(folder) / path.name
            command = [compiler, *FLAGS, "-o", str(built), str(source)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
            if result.returncode != 0:
                raise NativeLibraryError(f"{compiler} failed: {result.stderr.strip()[-300:]}")
            os.replace(built, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeLibraryError(f"the kernel could not be built in {path.parent}: {error}") from error
    logger.info("built %s", path)
