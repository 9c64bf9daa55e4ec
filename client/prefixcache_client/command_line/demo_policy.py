"""Who asks what in the demo: one long policy shared by all, four tenants, their visitors' questions."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

from prefixcache_client.messages import Message


class Tenant(NamedTuple):
    """A company whose visitors are served by the same agent."""

    name: str
    notice: str
    """What this tenant adds to the policy; no other tenant can see or share it."""
    questions: tuple[str, ...]


TENANTS = (
    Tenant(
        "harbour-travel",
        "You write for Harbour Travel, an agency. Refunds go to the agency.",
        (
            "Can I change my Light ticket to tomorrow, and what does it cost?",
            "Can I change the name on my ticket? One letter is wrong.",
            "Can I bring my cello into the cabin?",
            "Can I get a refund for a Classic ticket?",
        ),
    ),
    Tenant(
        "northlight-tours",
        "You write for Northlight Tours. Its groups have ten or more travellers.",
        (
            "My flight was cancelled. What can I choose between?",
            "My flight was late by four hours because of fog. Do I get money?",
            "My flight leaves tomorrow instead of today. Who pays the hotel?",
            "My flight was late because a crew was missing. What am I owed?",
        ),
    ),
    Tenant(
        "quayside-bank",
        "You write for the cardholders of Quayside Bank. Answer in two sentences.",
        (
            "How many bags may I take on a Classic ticket?",
            "How many days until my refund arrives on my card?",
            "How many kilograms may my cabin bag weigh?",
            "How many dogs may fly in the cabin, and for how much?",
        ),
    ),
    Tenant(
        "skerry-university",
        "You write for students of Skerry University. They travel on Light.",
        (
            "What does it cost to take a bicycle with me?",
            "What does a second checked bag cost online?",
            "What happens if my bag does not arrive?",
            "What happens to my return flight if I miss the first one?",
        ),
    ),
)

PUBLIC_MESSAGES = 1
"""The policy is the first message, and the only one that tenants share."""


def policy() -> str:
    """The agent's system prompt, about 1,770 tokens of the default model."""
    return files(__package__).joinpath("demo_policy.txt").read_text(encoding="utf-8")


def conversation(tenant: Tenant, question: str) -> list[Message]:
    """What the agent sees: the policy, the tenant's notice, the visitor's question."""
    return [
        {"role": "system", "content": policy()},
        {"role": "system", "content": tenant.notice},
        {"role": "user", "content": question},
    ]
