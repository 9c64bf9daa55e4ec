"""docs/workloads.md: the cached shares that it tells are those of an endless cache."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.sent_sessions import num_cached_tokens, sent_prompts

from prefixcache_client.load.workloads import Agents, Chat, SharedPrefix, Tenants

PAGE = Path(__file__).parents[3] / "docs/workloads.md"


@pytest.mark.parametrize("workload", [SharedPrefix(), Chat(), Agents(), Tenants()])
def test_the_page_tells_the_cached_share_of_the_defaults(workload: Any) -> None:
    warm_up = list(sent_prompts(workload.warm_up()))
    sent = [*warm_up, *sent_prompts(islice(workload.sessions(), 64))]
    num_cached = num_cached_tokens(sent, block_size=16)[len(warm_up) :]
    num_prompt_tokens = [len(request.prompt) for request in sent[len(warm_up) :]]

    told = re.findall(
        rf"^\| `{workload.description['kind']}` .* \| (.*) % \|$", PAGE.read_text(), re.MULTILINE
    )

    assert told == [f"{100 * sum(num_cached) / sum(num_prompt_tokens):.1f}"]
