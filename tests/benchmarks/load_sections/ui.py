"""What the live page costs the worker that it shows, and how soon it is there."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import suppress

from playwright.async_api import Browser, Page, async_playwright
from report import Row

from prefixcache_client import AsyncClient
from prefixcache_client.worker_process import WITHOUT_KEYS, WorkerProcess

CHROMIUM = "/usr/bin/chromium"
EMPTY_PAGE = "about:blank"
NUM_STREAMS = 8
NUM_OTHER_PROMPTS = 400
NUM_PAIRS = 7
TURN_SECONDS = 5.0
NUM_PAINTS = 5
_HTTP_LINE = "OpenAI-compatible HTTP on http://"


def ui_rows() -> list[Row]:
    """Decode speed with the page open over that with it closed, in turns; and the first paint."""
    with WorkerProcess("--http-address", "127.0.0.1:0", environment=WITHOUT_KEYS) as worker:
        address = worker.wait_ready(timeout_seconds=120)
        [line] = [line for line in worker.output_lines if line.startswith(_HTTP_LINE)]
        page_address = f"http://{line.removeprefix(_HTTP_LINE).removesuffix('/v1')}/ui/"
        ratios, speeds, num_nodes, paints = asyncio.run(_measure(address, page_address))
    ratio, paint = statistics.median(ratios), statistics.median(paints)
    return [
        Row(
            name=f"decode speed with the live page open, {NUM_STREAMS} streams",
            value=ratio,
            unit="of that with it closed",
            spread=f"{min(ratios):.3f} to {max(ratios):.3f}",
            bar=">= 0.95",
            holds=ratio >= 0.95,
            note=f"{statistics.median(speeds):.0f} tokens/s without; a tree of {num_nodes} nodes; "
            "the browser draws on the same processors",
        ),
        Row(
            name="first paint of the live page",
            value=paint,
            unit="s",
            spread=f"{min(paints):.3f} to {max(paints):.3f}",
            bar="<= 1",
            holds=paint <= 1,
            note="by the browser's own clock, an empty cache, while the worker decodes",
        ),
    ]


async def _measure(address: str, page_address: str) -> tuple[list[float], list[float], int, list[float]]:
    """Ratios of speed, speeds without the page, nodes of the tree, and seconds to the first paint."""
    async with AsyncClient(address) as client, async_playwright() as playwright:
        for number in range(NUM_OTHER_PROMPTS):
            await client.generate([100 + number] + [7] * 20, max_tokens=1)
        num_nodes = len((await client.tree()).nodes)
        streams = [asyncio.create_task(_keep_decoding(client, number)) for number in range(NUM_STREAMS)]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            paints = [await _first_paint(browser, page_address) for _ in range(NUM_PAINTS)]
            page = await browser.new_page()
            ratios, speeds = [], []
            for pair in range(NUM_PAIRS):
                # Which comes first alternates, so that what drifts favours neither.
                addresses = [EMPTY_PAGE, page_address]
                turns = addresses if pair % 2 else addresses[::-1]
                measured = {turn: await _speed(client, page, turn) for turn in turns}
                ratios.append(measured[page_address] / measured[EMPTY_PAGE])
                speeds.append(measured[EMPTY_PAGE])
        finally:
            await browser.close()
            for stream in streams:
                stream.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*streams)
    return ratios, speeds, num_nodes, paints


async def _keep_decoding(client: AsyncClient, number: int) -> None:
    while True:
        await client.generate([50 + number] * 16, max_tokens=2000, ignore_eos=True)


async def _first_paint(browser: Browser, page_address: str) -> float:
    page = await browser.new_page()
    await page.goto(page_address)
    await page.wait_for_selector(".cell")
    milliseconds: float = await page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    await page.close()
    return milliseconds / 1000


async def _speed(client: AsyncClient, page: Page, address: str) -> float:
    """Tokens a second while the page is at an address, and has been drawn."""
    await page.goto(address)
    if address != EMPTY_PAGE:
        await page.wait_for_selector(".cell")
    loop = asyncio.get_running_loop()
    begun, before = loop.time(), (await client.stats()).tokens.generated
    await asyncio.sleep(TURN_SECONDS)
    generated = (await client.stats()).tokens.generated - before
    return generated / (loop.time() - begun)
