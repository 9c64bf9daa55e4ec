"""Draw the pictures of the documentation from a real worker: `make screenshots`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from playwright.async_api import async_playwright
from support.doctor_picture import doctor_report
from support.process_worker import http_address
from support.shop_traffic import keep_shops_busy

from prefixcache_client.worker_process import WITHOUT_KEYS, WorkerProcess

DOCS = Path(__file__).parents[1] / "docs"
CHROMIUM = "/usr/bin/chromium"
START_SECONDS = 120.0
LIVELY_SECONDS = 75.0


def live_page(path: Path) -> None:
    """The live page of a worker with the default model, after a minute of traffic."""
    arguments = ("--http-address", "127.0.0.1:0", "--trust-tenant-header", "--kv-blocks", "320")
    with WorkerProcess(*arguments, environment=WITHOUT_KEYS) as worker:
        address = worker.wait_ready(timeout_seconds=START_SECONDS)
        asyncio.run(_picture_of_traffic(address, f"http://{http_address(worker)}/ui/", path))


async def _picture_of_traffic(address: str, page_address: str, path: Path) -> None:
    traffic = asyncio.create_task(keep_shops_busy(address, num_guests=8, max_tokens=24))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1600, "height": 1390}, color_scheme="light")
        await page.goto(page_address)
        await asyncio.sleep(LIVELY_SECONDS)
        await page.screenshot(path=path)
        await browser.close()
    traffic.cancel()
    with suppress(asyncio.CancelledError):
        await traffic


if __name__ == "__main__":
    live_page(DOCS / "ui.png")
    doctor_report(DOCS / "doctor.png")
