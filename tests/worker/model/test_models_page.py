"""docs/models.md lists what the readers support and says what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config_gguf import SUPPORTED_ARCHITECTURES
from prefixcache_worker.model.config_hugging_face import SUPPORTED_MODEL_TYPES, config_from_hugging_face

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
SHAPE = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
REFUSALS = re.findall(r"^\| `(\{.*\})` \| (.*) \|$", PAGE, re.MULTILINE)


def test_the_page_names_every_supported_architecture():
    families = re.findall(r"^\| [^`|]+ \| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert tuple(model_type for model_type, _ in families) == SUPPORTED_MODEL_TYPES
    assert {architecture for _, architecture in families} == set(SUPPORTED_ARCHITECTURES)


@pytest.mark.parametrize(("changes", "sentence"), REFUSALS)
def test_refusals_of_the_page_are_the_readers(changes, sentence):
    config = SHAPE | json.loads(changes)
    with pytest.raises(ConfigError) as info:
        config_from_hugging_face(config, generation_config={}, name="tiny", source="config.json")
    assert str(info.value) == f"config.json: {sentence}"


def test_the_page_has_refusals():
    assert len(REFUSALS) == 9
