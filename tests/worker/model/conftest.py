"""What is slow to load, loaded once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
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


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tiny models: a second thread would not help them, and on a busy machine they would wait for it."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
