"""What is slow to load, loaded once for all tests of this folder."""

from __future__ import annotations

import pytest
from support.transformers_reference import load_reference_tokenizer
from transformers import PreTrainedTokenizerBase

from prefixcache_worker.model.default_model import default_model_path
from prefixcache_worker.model.loader import LoadedModel, load_model


@pytest.fixture(scope="session")
def default_model() -> LoadedModel:
    return load_model()


@pytest.fixture(scope="session")
def reference_tokenizer() -> PreTrainedTokenizerBase:
    return load_reference_tokenizer(default_model_path())
