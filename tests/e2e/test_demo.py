"""The demo as `make demo` runs it: its own worker, the default model, the real policy and questions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line.demo_policy import PUBLIC_MESSAGES, TENANTS, conversation
from prefixcache_client.messages import Message
from prefixcache_worker.model.loader import LoadedModel, load_model

BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def default_model() -> LoadedModel:
    return load_model()


@pytest.fixture(scope="module")
def prompts(default_model: LoadedModel) -> dict[str, list[list[int]]]:
    """Tenant -> the token ids of its visitors' prompts."""
    return {
        tenant.name: [
            token_ids(default_model, conversation(tenant, question), add_generation_prompt=True)
            for question in tenant.questions
        ]
        for tenant in TENANTS
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The figures of one run, by name."""
    path: Path = tmp_path_factory.mktemp("demo") / "figures.json"
    worker_arguments = ["--kv-blocks", "400", "--num-threads", "1"]
    assert command_line.main(["demo", "--max-tokens", "4", "--json", str(path), "--", *worker_arguments]) == 0
    return {row["name"]: row for row in json.loads(path.read_text())}


def token_ids(model: LoadedModel, messages: list[Message], *, add_generation_prompt: bool) -> list[int]:
    assert model.chat_template is not None
    text = model.chat_template.render(messages, add_generation_prompt=add_generation_prompt)
    return model.tokenizer.encode(text, add_special=False)


def num_common_tokens(a: list[int], b: list[int]) -> int:
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def test_the_policy_is_as_long_as_those_of_real_agents(default_model):
    public = conversation(TENANTS[0], "?")[:PUBLIC_MESSAGES]
    assert 1300 <= len(token_ids(default_model, public, add_generation_prompt=False)) <= 4000


def test_prompts_of_every_tenant_part_inside_a_block(prompts):
    for of_tenant in prompts.values():
        parts = {num_common_tokens(a, b) % BLOCK_SIZE for a, b in itertools.combinations(of_tenant, 2)}
        assert parts - {0}


def test_the_figures_are_those_of_the_prompts(rows, prompts):
    all_prompts = [prompt for of_tenant in prompts.values() for prompt in of_tenant]
    first, *others = all_prompts
    num_shared = min(num_common_tokens(first, prompt) for prompt in others) // BLOCK_SIZE * BLOCK_SIZE
    assert rows["requests"]["value"] == 16
    assert rows["prompt tokens"]["value"] == sum(map(len, all_prompts))
    assert rows["prompt tokens cached"]["value"] >= 15 * num_shared
    assert (
        rows["prompt tokens cached"]["value"] + rows["prompt tokens computed"]["value"]
        == rows["prompt tokens"]["value"]
    )
    assert rows["first token, first request"]["note"] == "without queue, 0 tokens cached"
    assert rows["output"]["value"] > 0


def test_sharing_shows_in_memory_and_in_reading(rows):
    assert rows["KV in use at the peak"]["value"] < 0.2 * rows["KV at the peak without sharing"]["value"]
    assert 0 < rows["KV rows read"]["value"] < rows["KV rows without sharing"]["value"]


def test_prompts_that_part_inside_a_block_were_copied_on_write(rows):
    assert rows["blocks copied on write"]["value"] > 0
