"""The worker's settings: flags, then `PREFIXCACHE_*` variables, then one TOML file, then the defaults."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.settings import ENVIRONMENT_PREFIX, SETTINGS, Setting

_SETTING_BY_NAME = {setting.name: setting for setting in SETTINGS}
_ALTERNATIVES = ("kv_memory", "kv_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All settings of one worker.

    Raises ConfigError when a value is out of its bounds, however the object is made.
    """

    model: str | None = None
    model_name: str | None = None
    """What clients call it; None: what its file calls it."""
    device: str = "cpu"
    weights: Literal["fp32", "bf16", "int8"] = "fp32"
    attention: str = "auto"
    kv_dtype: str | None = None
    """None: fp32 on a CPU, bf16 on a GPU."""
    kv_scales: str | None = None
    """Of int8 and int4; None: token-head."""
    kv_layout: str = "layer-first"
    address: str = "127.0.0.1:50051"
    http_address: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    keys: str | None = None
    """Path of the file of API keys. None: everybody may call, as an admin."""
    open_access: bool = False
    trust_tenant_header: bool = False
    tenants: str | None = None
    """Path of the file of the tenants' limits."""
    kv_memory: int | None = None
    """Bytes. Counts only while `kv_blocks` is None. None: 1 GiB on a CPU; on a GPU what is left."""
    kv_blocks: int | None = None
    kv_headroom: float = 0.25
    tier_memory: int | None = None
    """Bytes; None: no such tier."""
    tier_file: str | None = None
    tier_file_size: int | None = None
    """Bytes of `tier_file`; one goes with the other."""
    block_size: int = 16
    scheme: str = "shared"
    max_batch_tokens: int = 512
    max_running: int = 64
    max_waiting: int = 256
    """So many requests are taken beyond `max_running`, whether they run or wait; more are refused."""
    max_waiting_tokens: int | None = None
    max_overtakes: int = 256
    max_unread_tokens: int = 1024
    stall_seconds: float = 30.0
    context_length: int | None = None
    window: int | None = None
    window_sinks: int | None = None
    top_k_blocks: int | None = None
    max_pinned_share: float = 0.5
    prefix_ttl: float = 3600.0
    """Seconds; 0 is for ever."""
    max_prefix_ttl: float = 86400.0
    """Seconds; 0 is for ever."""
    num_threads: int | None = None
    snapshot: str | None = None
    """Folder; None: no snapshots."""
    snapshot_seconds: float = 300.0
    snapshot_stop_seconds: float = 60.0
    metrics_aliases: str | None = None
    """Whose names the page of metrics has beside its own; None: nobody's."""
    metrics_tenants: int = 20
    log_level: str = "info"
    drain_seconds: float = 30.0
    audit: bool = False
    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector; None: no traces."""
    max_connection_age: float | None = None
    """Seconds. None: without end."""
    connection_age_grace: float = 600.0
    plant_fault: str | None = None
    """Name of a page in docs/pitfalls. None: the worker is whole."""

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            value = getattr(self, setting.name)
            if value is not None and not setting.accepts(value):
                raise ConfigError(f"{setting.flag}: {value!r} is not {setting.expects}")


def load_config(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerConfig:
    """The settings of a command line and an environment.

    Of --kv-memory and --kv-blocks, one alone may come from each source; the higher source decides.
    An empty variable counts as absent.
    Raises ConfigError, naming the flag, variable or key. Exits like argparse on unknown flags and --help.
    """
    flags = vars(_argument_parser().parse_args(arguments))
    config_path = flags.pop("config") or environment.get(ENVIRONMENT_PREFIX + "CONFIG")
    sources = (
        _file_values(config_path) if config_path else {},
        _environment_values(environment),
        _flag_values(flags),
    )
    merged: dict[str, Any] = {}
    for values in sources:  # each overrules the ones before it
        if any(name in values for name in _ALTERNATIVES):
            for name in _ALTERNATIVES:
                merged.pop(name, None)
        merged |= values
    return WorkerConfig(**merged)


def _argument_parser() -> argparse.ArgumentParser:
    example = _SETTING_BY_NAME["kv_memory"]
    parser = argparse.ArgumentParser(
        prog="prefixcache serve",
        description="Serves a language model over gRPC, and over HTTP as OpenAI does; "
        "requests share the KV of equal prefixes.",
        epilog=f"Every flag is also a variable ({example.flag}: {example.variable}) "
        f"and a key of the TOML file ({example.name}). Flags overrule variables, variables the file.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file with settings [{ENVIRONMENT_PREFIX}CONFIG]"
    )
    defaults = WorkerConfig()
    for setting in SETTINGS:
        if setting.is_switch:
            parser.add_argument(setting.flag, nargs="?", const="true", metavar="BOOL", help=setting.help)
            continue
        default = getattr(defaults, setting.name)
        suffix = "" if default is None else f" (default {default})"
        metavar = setting.name.rpartition("_")[2].upper()
        parser.add_argument(setting.flag, metavar=metavar, help=setting.help + suffix)
    return parser


def _flag_values(flags: Mapping[str, str | None]) -> dict[str, Any]:
    given = ((_SETTING_BY_NAME[name], text) for name, text in flags.items() if text is not None)
    return _parsed((setting, setting.flag, text) for setting, text in given)


def _environment_values(environment: Mapping[str, str]) -> dict[str, Any]:
    """A variable that looks like a misspelt setting is an error. Others of the prefix are left alone:
    the client has its own, and Kubernetes sets PREFIXCACHE_PORT and the like for a service of that name."""
    names = {
        variable: variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        for variable, text in environment.items()
        if variable.startswith(ENVIRONMENT_PREFIX) and text
    }
    for variable, name in names.items():
        close = get_close_matches(name, _SETTING_BY_NAME, n=1, cutoff=0.85)
        if close and name not in _SETTING_BY_NAME:
            meant = _SETTING_BY_NAME[close[0]].variable
            raise ConfigError(f"{variable}: there is no such variable; did you mean {meant}?")
    return _parsed(
        (_SETTING_BY_NAME[name], variable, environment[variable])
        for variable, name in names.items()
        if name in _SETTING_BY_NAME
    )


def _file_values(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is not valid TOML: {error}") from error
    given = []
    for key, value in table.items():
        setting = _SETTING_BY_NAME.get(key.replace("-", "_"))  # people write keys like the flags
        if setting is None:
            raise ConfigError(f"{path}: unknown key {key!r}; known are {', '.join(_SETTING_BY_NAME)}")
        if (isinstance(value, bool) and not setting.is_switch) or not isinstance(value, str | int | float):
            raise ConfigError(f"{path}: {key}: {value!r} is not {setting.expects}")
        given.append((setting, f"{path}: {key}", str(value)))
    return _parsed(given)


def _parsed(given: Iterable[tuple[Setting, str, str]]) -> dict[str, Any]:
    """Values by setting name. `given`: setting, the place it was given at, and its text."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for setting, place, text in given:
        try:
            value = setting.parse(text)
        except ValueError:
            value = None
        if value is None or not setting.accepts(value):
            raise ConfigError(f"{place}: {text!r} is not {setting.expects}")
        if setting.name in values:
            raise ConfigError(f"{places[setting.name]} and {place} are the same setting: keep one of them")
        values[setting.name], places[setting.name] = value, place
    if all(name in values for name in _ALTERNATIVES):
        first, second = (places[name] for name in _ALTERNATIVES)
        raise ConfigError(f"{first} and {second} exclude each other: keep one of them")
    return values
