"""Settings: where they come from, which source wins, and what a bad one is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache_worker.config import WorkerConfig, load_config
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.memory_size import format_memory, parse_memory
from prefixcache_worker.settings import SETTINGS, Setting

SAMPLE_TEXT = {
    "otlp_endpoint": "http://127.0.0.1:4317",
    "model": "models/some.gguf",
    "model_name": "some 1B",
    "device": "cuda",
    "weights": "int8",
    "attention": "torch",
    "kv_dtype": "int8",
    "kv_scales": "channel",
    "kv_layout": "head-first",
    "http_address": "127.0.0.1:8000",
    "address": "0.0.0.0:7000",
    "tls_certificate": "worker.pem",
    "tls_key": "worker.key",
    "tls_client_ca": "clients.pem",
    "keys": "keys.json",
    "open_access": "true",
    "trust_tenant_header": "true",
    "tenants": "tenants.toml",
    "kv_memory": "64MiB",
    "kv_blocks": "99",
    "kv_headroom": "0.5",
    "tier_memory": "2GiB",
    "tier_file": "/tmp/tier",
    "tier_file_size": "64GiB",
    "block_size": "32",
    "scheme": "paged",
    "max_batch_tokens": "128",
    "max_running": "8",
    "max_waiting": "9",
    "max_waiting_tokens": "5000",
    "max_overtakes": "0",
    "max_unread_tokens": "64",
    "stall_seconds": "2.5",
    "context_length": "1000",
    "window": "512",
    "window_sinks": "8",
    "top_k_blocks": "32",
    "max_pinned_share": "0.25",
    "prefix_ttl": "60",
    "max_prefix_ttl": "600",
    "num_threads": "2",
    "metrics_aliases": "vllm",
    "metrics_tenants": "5",
    "log_level": "debug",
    "drain_seconds": "1.5",
    "audit": "true",
    "max_connection_age": "3600",
    "connection_age_grace": "60",
    "plant_fault": "extra-row",
    "snapshot": "snapshots",
    "snapshot_seconds": "60",
    "snapshot_stop_seconds": "5",
}


def test_the_table_covers_every_field_once():
    assert [setting.name for setting in SETTINGS] == list(WorkerConfig.__dataclass_fields__)


def test_nothing_given_means_defaults():
    assert load_config([], {}) == WorkerConfig()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_means_the_same_from_all_three_sources(setting, tmp_path: Path):
    text = SAMPLE_TEXT[setting.name]
    file = tmp_path / "worker.toml"
    file.write_text(f'{setting.name} = "{text}"')

    from_flag = load_config([setting.flag, text], {})

    assert getattr(from_flag, setting.name) == setting.parse(text) != getattr(WorkerConfig(), setting.name)
    assert load_config([], {setting.variable: text}) == from_flag
    assert load_config(["--config", str(file)], {}) == from_flag


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting.is_switch])
def test_a_switch_is_on_by_its_flag_alone_and_can_be_turned_off_again(setting: Setting, tmp_path: Path):
    file = tmp_path / "worker.toml"
    file.write_text(f"{setting.name} = true")
    on, off = [setting.flag], [setting.flag, "false"]

    assert getattr(load_config(on, {}), setting.name) is True
    assert getattr(load_config(["--config", str(file)], {}), setting.name) is True
    assert getattr(load_config(["--config", str(file), *off], {}), setting.name) is False
    with pytest.raises(ConfigError, match=rf"^{setting.flag}: 'maybe' is not true or false$"):
        load_config([setting.flag, "maybe"], {})


def test_flags_overrule_variables_and_variables_the_file(tmp_path: Path):
    file = tmp_path / "worker.toml"
    file.write_text("max_running = 1\nmax_waiting = 1\nblock_size = 32\n")
    environment = {
        "PREFIXCACHE_CONFIG": str(file),
        "PREFIXCACHE_MAX_RUNNING": "2",
        "PREFIXCACHE_MAX_WAITING": "2",
    }

    config = load_config(["--max-running", "3"], environment)

    assert (config.max_running, config.max_waiting, config.block_size) == (3, 2, 32)


def test_the_higher_source_chooses_between_memory_and_blocks():
    by_blocks = load_config(["--kv-blocks", "8"], {"PREFIXCACHE_KV_MEMORY": "1GiB"})
    by_memory = load_config(["--kv-memory", "2MiB"], {"PREFIXCACHE_KV_BLOCKS": "8"})

    assert by_blocks.kv_blocks == 8
    assert (by_memory.kv_blocks, by_memory.kv_memory) == (None, 2 << 20)


def test_memory_and_blocks_from_one_source_exclude_each_other():
    with pytest.raises(ConfigError, match=r"^--kv-memory and --kv-blocks exclude each other"):
        load_config(["--kv-memory", "1GiB", "--kv-blocks", "8"], {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device", "tpu"),
        ("address", "localhost"),
        ("address", "localhost:"),
        ("address", ":50051"),
        ("address", "127.0.0.1:65536"),
        ("address", "::1:50051"),
        ("kv_memory", "1 gigabyte"),
        ("kv_memory", "-1GiB"),
        ("kv_memory", "0"),
        ("kv_blocks", "0"),
        ("kv_blocks", "1.5"),
        ("kv_headroom", "-0.1"),
        ("kv_headroom", "nan"),
        ("block_size", "0"),
        ("block_size", "24"),
        ("max_batch_tokens", "many"),
        ("max_running", "-1"),
        ("max_waiting_tokens", "0"),
        ("max_overtakes", "-1"),
        ("max_unread_tokens", "16385"),
        ("stall_seconds", "0"),
        ("max_connection_age", "0.5"),
        ("connection_age_grace", "-1"),
        ("context_length", "1"),
        ("max_pinned_share", "1.5"),
        ("prefix_ttl", "-1"),
        ("max_prefix_ttl", "inf"),
        ("num_threads", "0"),
        ("metrics_aliases", "sglang"),
        ("metrics_tenants", "-1"),
        ("log_level", "loud"),
        ("snapshot_seconds", "0.5"),
        ("snapshot_stop_seconds", "-1"),
        ("drain_seconds", "inf"),
    ],
)
def test_a_bad_value_is_named_with_its_source_and_what_is_expected(name: str, text: str, tmp_path: Path):
    setting = next(setting for setting in SETTINGS if setting.name == name)
    file = tmp_path / "worker.toml"
    file.write_text(f'{name} = "{text}"')

    sources = {
        setting.flag: ([f"{setting.flag}={text}"], {}),
        setting.variable: ([], {setting.variable: text}),
        f"{file}: {name}": (["--config", str(file)], {}),
    }

    for place, (flags, environment) in sources.items():
        with pytest.raises(ConfigError) as caught:
            load_config(flags, environment)
        assert str(caught.value) == f"{place}: {text!r} is not {setting.expects}"


def test_a_config_made_in_code_is_checked_too():
    with pytest.raises(ConfigError, match="--block-size: 24 is not a power of two"):
        WorkerConfig(block_size=24)


def test_an_unknown_toml_key_is_named_with_the_known_ones(tmp_path: Path):
    file = tmp_path / "worker.toml"
    file.write_text("blocksize = 16")
    with pytest.raises(
        ConfigError, match=r"worker\.toml: unknown key 'blocksize'; known are model, model_name"
    ):
        load_config(["--config", str(file)], {})


@pytest.mark.parametrize("value", ["true", "[16]", "{a = 1}", "2020-01-01"])
def test_a_toml_value_of_another_type_is_refused(value: str, tmp_path: Path):
    file = tmp_path / "worker.toml"
    file.write_text(f"block_size = {value}")
    with pytest.raises(ConfigError, match=r"block_size: .* is not a power of two"):
        load_config(["--config", str(file)], {})


def test_toml_keys_may_be_written_like_the_flags(tmp_path: Path):
    file = tmp_path / "worker.toml"
    file.write_text('kv-memory = "64MiB"\nblock-size = 32\nmax_running = 8\n')
    config = load_config(["--config", str(file)], {})
    assert config == WorkerConfig(kv_memory=64 << 20, block_size=32, max_running=8)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("block-size = 24", r"worker\.toml: block-size: '24' is not a power of two$"),
        (
            "block-size = 16\nblock_size = 32",
            r"worker\.toml: block-size and .*worker\.toml: block_size are the same setting: keep one",
        ),
        (
            "kv-memory = 1\nkv-blocks = 2",
            r"worker\.toml: kv-memory and .*worker\.toml: kv-blocks exclude each other",
        ),
    ],
)
def test_an_error_names_a_toml_key_as_it_is_written(text: str, sentence: str, tmp_path: Path):
    file = tmp_path / "worker.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_config(["--config", str(file)], {})


def test_a_missing_or_broken_file_is_named(tmp_path: Path):
    broken = tmp_path / "broken.toml"
    broken.write_bytes(b"model = \xff")
    with pytest.raises(ConfigError, match=r"--config: cannot read .*absent\.toml: No such file"):
        load_config(["--config", str(tmp_path / "absent.toml")], {})
    with pytest.raises(ConfigError, match=r"--config: .*broken\.toml is not valid TOML"):
        load_config(["--config", str(broken)], {})


def test_a_misspelt_variable_is_an_error_and_a_foreign_one_is_not():
    foreign = {"PREFIXCACHE_PORT": "tcp://10.0.0.1:50051", "PREFIXCACHE_API_KEY": "k", "PATH": "/bin"}
    assert load_config([], foreign) == WorkerConfig()
    with pytest.raises(
        ConfigError, match=r"^PREFIXCACHE_BLOCKSIZE: .* did you mean PREFIXCACHE_BLOCK_SIZE\?$"
    ):
        load_config([], {"PREFIXCACHE_BLOCKSIZE": "16"})


def test_an_empty_variable_counts_as_absent():
    assert load_config([], {"PREFIXCACHE_MODEL": "", "PREFIXCACHE_CONFIG": ""}) == WorkerConfig()


@pytest.mark.parametrize("arguments", [["--no-such-flag"], ["--block", "16"], ["stray"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        load_config(arguments, {})
    assert caught.value.code == 2
    assert "prefixcache serve: error: unrecognized arguments" in capsys.readouterr().err


def test_help_shows_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        load_config(["--help"], {})
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert all(setting.flag in text for setting in SETTINGS)
    assert text.startswith("usage: prefixcache serve ")
    assert "(default 512)" in text
    assert "after SIGTERM or SIGINT; a second one stops at once" in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1073741824", 1 << 30),
        ("100B", 100),
        ("1GiB", 1 << 30),
        ("1.5 gib", 3 << 29),
        ("512Mi", 512 << 20),
        ("2K", 2000),
        ("1TB", 10**12),
    ],
)
def test_memory_sizes(text: str, num_bytes: int):
    assert parse_memory(text) == num_bytes


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_memory_size_or_a_value_error(text: str):
    try:
        num_bytes = parse_memory(text)
    except ValueError:
        return
    assert num_bytes >= 0
    assert text.strip()[0].isdigit()


@settings(deadline=None)
@given(st.integers(0, 1 << 50))
def test_a_formatted_size_reads_back_to_four_digits(num_bytes: int):
    assert parse_memory(format_memory(num_bytes)) == pytest.approx(num_bytes, rel=1e-3)


def outcome_of(environment: dict[str, str]) -> WorkerConfig | ConfigError:
    try:
        return load_config([], environment)
    except ConfigError as error:
        return error


def given_in(environment: dict[str, str]) -> list[Setting]:
    return [setting for setting in SETTINGS if environment.get(setting.variable)]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([setting.name for setting in SETTINGS]), st.text(max_size=12)))
def test_any_environment_gives_a_config_or_a_config_error(values: dict[str, str]):
    environment = {f"PREFIXCACHE_{name.upper()}": text for name, text in values.items()}
    outcome = outcome_of(environment)
    if isinstance(outcome, ConfigError):
        assert any(name in str(outcome) for name in environment)
    else:
        assert all(setting.accepts(getattr(outcome, setting.name)) for setting in given_in(environment))
