"""Lively traffic of several tenants that share what they begin with, for pictures and for looking."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from prefixcache_client import AsyncClient, Message

HOUSE_RULES = (
    "You are the assistant of a booking house that serves airlines, hotels and ferries. Be brief and exact. "
    "Never promise a refund: say what the tariff allows, name the deadline and the fee, and offer to open a "
    "case. Dates are written day before month. Amounts are in euros with two digits. If a guest is "
    "travelling with a child, a dog or a bicycle, say which form is needed before the booking is changed. "
)
TENANTS = {
    "northern-air": "Tariffs: Light, Classic, Flex. Light fares cannot be changed. Bags cost 30 euros each.",
    "hotel-quay": "Rooms are held until 18:00. Breakfast is 14 euros. Late departure until noon is free.",
    "blue-ferries": "Cabins are for two or four. Dogs stay in the car deck kennel.",
    "city-rail": "Seats cost 4 euros. Small children travel free. Tickets can be returned until departure.",
}
QUESTIONS = (
    "Can I change my booking to Friday?",
    "How much is a second bag for my daughter?",
    "I missed the deadline by an hour. What now?",
    "Please send the receipt to my company.",
    "Is there room for a bicycle on the way back?",
    "What happens if the weather is bad?",
    "We are five people now, not four.",
    "Which form do I need for the dog?",
)


async def keep_shops_busy(address: str, *, num_guests: int, max_tokens: int, seed: int = 7) -> None:
    """So many guests at once, who talk for some turns and are followed by others; until cancelled."""
    async with AsyncClient(address, tenant="house") as client:
        await client.create_prefix([{"role": "system", "content": HOUSE_RULES}], public=True)
    async with asyncio.TaskGroup() as guests:
        for number in range(num_guests):
            tenant = list(TENANTS)[number % len(TENANTS)]
            choose = random.Random(seed + number)
            guests.create_task(_serve_guests(address, tenant, choose, max_tokens))


async def _serve_guests(address: str, tenant: str, choose: random.Random, max_tokens: int) -> None:
    async with AsyncClient(address, tenant=tenant) as client:
        while True:
            questions = choose.sample(QUESTIONS, k=choose.randint(1, 4))
            await _converse(client, tenant, questions, max_tokens)


async def _converse(client: AsyncClient, tenant: str, questions: Sequence[str], max_tokens: int) -> None:
    messages: list[Message] = [
        {"role": "system", "content": HOUSE_RULES},
        {"role": "system", "content": f"You answer for {tenant}. {TENANTS[tenant]}"},
    ]
    for question in questions:
        messages.append({"role": "user", "content": question})
        generation = await client.chat(
            messages, public_messages=1, max_tokens=max_tokens, temperature=0, ignore_eos=True
        )
        messages.append({"role": "assistant", "content": generation.choices[0].text})
