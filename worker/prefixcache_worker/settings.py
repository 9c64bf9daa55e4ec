"""The table of the worker's settings: names, bounds and what each is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from prefixcache_worker.memory_size import parse_memory
from prefixcache_worker.server_address import split_address

ENVIRONMENT_PREFIX = "PREFIXCACHE_"


class Setting(NamedTuple):
    """One row of the table that the flags, the variables and the TOML keys all come from."""

    name: str
    """The WorkerConfig field and the TOML key; the flag and the variable follow from it."""
    parse: Callable[[str], Any]
    """Text to value; raises ValueError."""
    accepts: Callable[[Any], bool]
    expects: str
    """Completes "... is not"."""
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """Whether the flag alone means true."""
        return self.parse is parse_switch

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def _is_address(address: str) -> bool:
    try:
        split_address(address)
    except ValueError:
        return False
    return True


def _is_endpoint(url: str) -> bool:
    scheme, _, address = url.partition("://")
    return scheme in ("http", "https") and _is_address(address)


def _at_least(minimum: int) -> Callable[[int], bool]:
    return lambda value: value >= minimum


def parse_switch(text: str) -> bool:
    """Of "true" and "1", "false" and "0". Raises ValueError."""
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise ValueError(f"{text!r} is neither true nor false")


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_seconds(value: float) -> bool:
    return 0 <= value <= _MOST_SECONDS


_MOST_SECONDS = 1e9
_SECONDS = f"a number from 0 to {_MOST_SECONDS:g}"
_POSITIVE = "a whole number of at least 1"
KV_DTYPES = ("fp32", "fp16", "bf16", "int8", "int4")
KV_SCALES = ("token-head", "head", "tensor", "channel")
_KV_LAYOUTS = ("layer-first", "head-first")
_LOG_LEVELS = ("debug", "info", "warning", "error")

SETTINGS = (
    Setting("model", str, bool, "a path",
            "a .gguf file or a folder with safetensors; without it the built-in SmolLM2-135M-Instruct"),
    Setting("model_name", str, lambda name: 1 <= len(name) <= 256 and name.isprintable(),
            "1 to 256 printable characters",
            "what clients call the model, as OpenAI's do; without it what its file says"),
    Setting("device", str, ("cpu", "cuda").__contains__, "cpu or cuda",
            "where the model runs: cpu or cuda"),
    Setting("weights", str, ("fp32", "bf16", "int8").__contains__, "fp32, bf16 or int8",
            "how weights are kept and multiplied: fp32; bf16: half the memory; int8: a quarter, less exact"),
    Setting("attention", str, ("auto", "native", "triton", "torch").__contains__,
            "auto, native, triton or torch",
            "native: a kernel that is compiled on this machine's CPU; triton: kernels for its GPU; "
            "torch: neither; auto: the best that can be had"),
    Setting("kv_dtype", str.lower, KV_DTYPES.__contains__, "one of " + ", ".join(KV_DTYPES),
            "how KV rows are stored: " + ", ".join(KV_DTYPES) + "; without it fp32, on a GPU bf16"),
    Setting("kv_scales", str.lower, KV_SCALES.__contains__, "one of " + ", ".join(KV_SCALES),
            "which elements of int8 or int4 rows share a scale: " + ", ".join(KV_SCALES)
            + "; without it token-head"),
    Setting("kv_layout", str.lower, _KV_LAYOUTS.__contains__, "one of " + ", ".join(_KV_LAYOUTS),
            "the outer dimension of the KV pool: " + " or ".join(_KV_LAYOUTS)),
    Setting("address", str, _is_address, "HOST:PORT with a port of 0 to 65535",
            "HOST:PORT to listen on; port 0 takes a free one"),
    Setting("http_address", str, _is_address, "HOST:PORT with a port of 0 to 65535",
            "HOST:PORT of the OpenAI-compatible HTTP door; without it there is none"),
    Setting("tls_certificate", str, bool, "a path",
            "PEM file with the worker's certificate and its chain: calls are encrypted; with --tls-key"),
    Setting("tls_key", str, bool, "a path",
            "PEM file with the certificate's key; both files are read again when they change"),
    Setting("tls_client_ca", str, bool, "a path",
            "PEM file with authorities: only callers with a certificate that one of them has signed get in"),
    Setting("keys", str, bool, "a path",
            "file of API keys, which `prefixcache keys` writes: only calls with one of them are answered; "
            "without it everybody is an admin"),
    Setting("open_access", parse_switch, _is_switch, "true or false",
            "answer other machines without --keys: a network or a proxy decides who may call"),
    Setting("trust_tenant_header", parse_switch, _is_switch, "true or false",
            "let x-tenant-id name the tenant, with --keys only beside an admin's key"),
    Setting("tenants", str, bool, "a path",
            "TOML file with limits of tenants: [default] and [tenants.NAME]"),
    Setting("kv_memory", parse_memory, _at_least(1), "a memory size such as 1GiB or 512MiB",
            "memory of the KV pool before headroom; without it 1GiB, on a GPU what the model leaves"),
    Setting("kv_blocks", int, _at_least(1), _POSITIVE,
            "blocks of the KV pool before headroom, in place of --kv-memory"),
    Setting("kv_headroom", float, lambda value: 0 <= value <= 10, "a number from 0 to 10",
            "share of the pool that is allocated on top of what was asked for"),
    Setting("tier_memory", parse_memory, _at_least(1), "a memory size such as 1GiB or 512MiB",
            "memory of this machine for blocks that the KV pool has no room for; without it none"),
    Setting("tier_file", str, bool, "a path",
            "a new file for blocks that there is no room for elsewhere; it is gone when the worker is"),
    Setting("tier_file_size", parse_memory, _at_least(1), "a memory size such as 1GiB or 512MiB",
            "how large --tier-file is; so much of the disk is taken at once"),
    Setting("block_size", int, lambda value: value > 0 and value & (value - 1) == 0, "a power of two",
            "tokens of one KV block"),
    Setting("scheme", str, ("contiguous", "paged", "shared").__contains__, "contiguous, paged or shared",
            "shared: equal prefixes are stored once; to compare, paged: blocks on demand, nothing shared, "
            "and contiguous: room for the whole context for each request"),
    Setting("max_batch_tokens", int, _at_least(1), _POSITIVE,
            "tokens computed in one step, prefill and decode together"),
    Setting("max_running", int, _at_least(1), _POSITIVE,
            "sequences that run at the same time"),
    Setting("max_waiting", int, _at_least(1), _POSITIVE,
            "requests that are taken beyond --max-running, to wait; more are refused"),
    Setting("max_waiting_tokens", int, _at_least(1), _POSITIVE,
            "prompt tokens that are taken to wait; a prompt that makes them more is refused, unless alone"),
    Setting("max_overtakes", int, _at_least(0), "a whole number of at least 0",
            "later requests that may go before a waiting one, by priority, fairness or what is cached"),
    Setting("max_unread_tokens", int, lambda value: 1 <= value <= 16384, "a whole number from 1 to 16384",
            "tokens that may wait for a slow reader; with so many its request is paused"),
    Setting("stall_seconds", float, lambda value: 0 < value <= 86400, "a number above 0, to 86400",
            "a paused request is ended when its client reads nothing for so long"),
    Setting("context_length", int, _at_least(2), "a whole number of at least 2",
            "most tokens of prompt and answer together; without it the model's own limit"),
    Setting("window", int, _at_least(1), _POSITIVE,
            "rows back from its own that a token reads, in layers that would read more; approximate, and "
            "what is behind is given back"),
    Setting("window_sinks", int, _at_least(0), "a whole number of at least 0",
            "rows at the beginning that --window leaves readable; without it 4"),
    Setting("top_k_blocks", int, _at_least(4), "a whole number of at least 4",
            "KV blocks that a decoding token reads of each head: the first, the last two, and those that "
            "matter most; approximate"),
    Setting("max_pinned_share", float, lambda value: 0 <= value <= 1, "a number from 0 to 1",
            "share of the pool that prefixes may keep, those of all tenants together"),
    Setting("prefix_ttl", float, _is_seconds, _SECONDS,
            "seconds that a prefix is kept after its last use, where its maker does not say; 0: for ever"),
    Setting("max_prefix_ttl", float, _is_seconds, _SECONDS,
            "the most seconds that its maker may say; 0: any number, and for ever"),
    Setting("num_threads", int, _at_least(1), _POSITIVE,
            "threads of the model on the CPU; without it one per core"),
    Setting("snapshot", str, bool, "a path",
            "a folder where the cache is saved, and from where a worker that starts takes it; one for each "
            "worker; without it nothing is saved"),
    Setting("snapshot_seconds", float, lambda value: 1 <= value <= 86400, "a number from 1 to 86400",
            "time between two saves; none when nothing has changed"),
    Setting("snapshot_stop_seconds", float, lambda value: 0 <= value <= 86400, "a number from 0 to 86400",
            "how long the save at the end may take, after --drain-seconds"),
    Setting("metrics_aliases", str, ("vllm",).__contains__, "vllm",
            "vllm: the page of metrics has vLLM's names beside its own"),
    Setting("metrics_tenants", int, _at_least(0), "a whole number of at least 0",
            "tenants that the page of metrics names, those with the most tokens; 0: it tells of none"),
    Setting("log_level", str.lower, _LOG_LEVELS.__contains__, "one of " + ", ".join(_LOG_LEVELS),
            "how much to log: " + ", ".join(_LOG_LEVELS)),
    Setting("drain_seconds", float, lambda value: 0 <= value <= 86400, "a number from 0 to 86400",
            "how long running requests may finish after SIGTERM or SIGINT; a second one stops at once"),
    Setting("audit", parse_switch, _is_switch, "true or false",
            "when all has ended, check every count and reference; what is wrong is in the log, and the exit "
            "status is 1"),
    Setting("otlp_endpoint", str, _is_endpoint, "http://HOST:PORT or https://HOST:PORT",
            "where an OpenTelemetry collector takes traces over gRPC; without it none are made"),
    Setting("max_connection_age", float, lambda value: 1 <= value <= 1e6, "a number from 1 to 1000000",
            "seconds after which a client is told to connect anew, so that it finds new workers"),
    Setting("connection_age_grace", float, lambda value: 0 <= value <= 1e6, "a number from 0 to 1000000",
            "seconds that calls may still run on a connection that has reached its age"),
    Setting("plant_fault", str, bool, "a name",
            "break the worker on purpose, for `prefixcache doctor` to find: a page of docs/pitfalls by its "
            "name; only in a checkout of the source"),
)  # fmt: skip
