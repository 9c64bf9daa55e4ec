"""The default model under rules: real tokens, real logits, the real client."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest
from support.served_worker import served

from prefixcache_client.async_client import AsyncClient
from prefixcache_worker.model.loader import LoadedModel, load_model

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "inhabitants": {"type": "integer", "minimum": 1, "maximum": 99_999_999},
        "tags": {
            "type": "array",
            "items": {"enum": ["capital", "port", "old"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["city", "inhabitants", "tags"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Tell me about Paris, as JSON."}]


@pytest.fixture(scope="module")
def default_model() -> LoadedModel:
    return load_model()


async def test_the_default_model_follows_a_schema_an_expression_and_a_grammar(default_model: LoadedModel):
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 80}
    async with served(default_model, num_threads=1) as worker, AsyncClient(worker.address) as client:
        schema, regex, grammar = await asyncio.gather(
            client.generate(QUESTION, json_schema=CITY, **options),
            client.generate(QUESTION, regex="The capital of France is [A-Z][a-z]+\\.", **options),
            client.generate(
                QUESTION, grammar='start: "Paris " ("is" | "was") " " /[a-z]{1,12}/ "!"', **options
            ),
        )
    assert {answer.choices[0].finish_reason for answer in (schema, regex, grammar)} == {"stop"}
    value = json.loads(schema.text)
    jsonschema.validate(value, CITY)
    assert value["city"] == "Paris"
    assert regex.text == "The capital of France is Paris."
    assert re.fullmatch("Paris (is|was) [a-z]{1,12}!", grammar.text)
