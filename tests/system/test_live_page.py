"""The live page in a real browser, over a real worker with a pool of 100,000 blocks and real traffic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.page_checks import NAMELESS, TEXTS, colours_of, contrast
from support.process_worker import http_address, process_worker, tiny_model_folder

from prefixcache_client import Client
from prefixcache_worker.server.access.api_keys import make_key
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.key_file import KeyFile

CHROMIUM = "/usr/bin/chromium"
READY_SECONDS = 120.0
NUM_BLOCKS = 100_000
HOUSE_RULES = "Be brief and exact. Never promise what the tariff does not allow. "
TENANTS = ("northern-air", "hotel-quay", "<b>blue</b>")
SCHEMES = ("light", "dark")
LEAST_TEXT_CONTRAST, LEAST_SHAPE_CONTRAST = 4.5, 3.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_address(model: Path) -> Iterator[str]:
    """Of a worker where three tenants have talked, and one prefix is kept."""
    arguments = ("--http-address", "127.0.0.1:0", "--trust-tenant-header", "--kv-blocks", str(NUM_BLOCKS))
    arguments += ("--kv-headroom", "0")
    with process_worker(model, *arguments) as worker:
        address = worker.wait_ready(timeout_seconds=READY_SECONDS)
        with Client(address) as client:
            client.create_prefix(HOUSE_RULES, public=True)
        for tenant in TENANTS:
            with Client(address, tenant=tenant) as client:
                for number in range(6):
                    prompt = f"{HOUSE_RULES}You answer for {tenant}. Guest {number} asks for a room."
                    client.generate(prompt, public_tokens=len(HOUSE_RULES), max_tokens=4, ignore_eos=True)
        yield f"http://{http_address(worker)}/ui/"


@pytest.fixture
def page(browser: Browser, page_address: str) -> Iterator[Page]:
    """The page, drawn once; fails the test if the browser complains of anything."""
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_address)
    expect(page.locator("#status")).to_have_attribute("data-state", "live")
    expect(page.locator(".cell").first).to_be_visible()
    yield page
    page.close()
    assert [complaint for complaint in complaints if "400 (Bad Request)" not in complaint] == []


def test_the_page_shows_the_worker(page: Page) -> None:
    expect(page.locator("#pool-size")).to_contain_text("100,000 blocks")
    assert page.locator("#pool path").count() == 4
    figures = page.locator("#figures").inner_text()
    for name in ("Hit ratio", "Generated", "Requests", "Pool held", "Attention reads"):
        assert name in figures
    assert "19 finished" in figures
    legend = page.locator("#legend").inner_text().splitlines()
    assert set(TENANTS) | {"public"} <= set(legend), "names are text, not markup"
    expect(page.locator("#events .stored").first).to_be_visible()
    assert page.locator(".cell").first.inner_text().startswith("Be brief and exact.")


def test_live_requests_appear_and_go(page: Page, page_address: str) -> None:
    expect(page.locator("#requests")).to_contain_text("No request runs or waits.")
    body = {"model": "model", "prompt": HOUSE_RULES, "max_tokens": 150, "ignore_eos": True, "n": 2}
    body["model"] = page.request.get(page_address.replace("/ui/", "/v1/models")).json()["data"][0]["id"]
    seen: list[str] = []
    page.route("**/ui/data/now", lambda route: (seen.append("asked"), route.continue_()))
    asking = Thread(target=keep_asking, args=(page_address, body, seen))
    asking.start()
    try:
        expect(page.locator("#requests tbody tr").first).to_contain_text("decoding", timeout=30_000)
        expect(page.locator("#requests tbody tr").first).to_contain_text("\u00d72")
    finally:
        seen.append("enough")
        asking.join()
    expect(page.locator("#requests")).to_contain_text("No request runs or waits.", timeout=30_000)


def keep_asking(page_address: str, body: dict[str, object], seen: list[str]) -> None:
    """One request after the other, until the page has seen one."""
    while "enough" not in seen:
        httpx.post(page_address.replace("/ui/", "/v1/completions"), json=body, timeout=60).raise_for_status()


def test_the_tree_is_walked_with_the_keyboard_alone(page: Page) -> None:
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # past the head
    focused = page.locator("*:focus")
    for _ in range(20):
        page.keyboard.press("Tab")
        if "cell" in (focused.get_attribute("class") or ""):
            break
    expect(focused).to_have_attribute("aria-level", "1")
    expect(page.locator("#tooltip")).to_contain_text("public")
    page.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("aria-level", "2")
    first = focused.get_attribute("aria-label")
    page.keyboard.press("ArrowRight")
    assert focused.get_attribute("aria-label") != first
    page.keyboard.press("Home")
    assert focused.get_attribute("aria-label") == first
    page.keyboard.press("Enter")
    expect(page.locator("#crumbs li")).to_have_count(3)
    expect(page.locator("#crumbs [aria-current]")).to_have_text("private")
    expect(focused).to_have_attribute("aria-label", str(first))
    page.keyboard.press("Escape")
    expect(page.locator("#crumbs li")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#crumbs li")).to_have_count(1)


def test_everything_that_can_be_used_is_reached_by_tab_and_shows_its_focus(page: Page) -> None:
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        outline = page.evaluate("""() => {
            const it = document.activeElement;
            const shown = it.matches("input[type=radio]") ? it.nextElementSibling : it;
            return [it.id || it.className || it.value || it.tagName, getComputedStyle(shown).outlineStyle];
        }""")
        if outline[0] != "BODY":
            reached.add(outline[0])
            assert outline[1] == "solid", outline
    expected = {"skip", "pause", "tokens", "tenant", "requests", "events", "prompt"}
    assert expected <= reached


def test_width_and_colour_are_chosen(page: Page) -> None:
    first = page.locator(".cell").first
    expect(page.locator("#tree-size")).to_contain_text("tokens")
    page.locator("input[value=blocks]").check(force=True)
    expect(page.locator("#tree-size")).to_contain_text("iB")
    for colour, word in (("heat", "no reader"), ("age", "longer ago"), ("tenant", "hotel-quay")):
        page.locator(f"input[value={colour}]").check(force=True)
        expect(page.locator("#legend")).to_contain_text(word)
        expect(first).to_have_attribute("style", re.compile(r"background: var\(--(heat-\d|public)\)"))


def test_a_prompt_is_explained(page: Page) -> None:
    page.fill("#prompt", HOUSE_RULES + "<i>What</i> does a cabin for two cost?")
    page.click("#explain button")
    told = page.locator("#explanation")
    expect(told).to_contain_text("tokens are cached")
    # As text, not as markup; an answer in the cache may by chance begin with the same character.
    assert "What</i>" in told.locator("mark").all_inner_texts()[0]
    page.fill("#prompt", '[{"role": "user", "content": "hello"}]')
    page.click("#explain button")
    expect(told).to_contain_text(re.compile("of 1[0-9] tokens"))
    page.fill("#prompt", "x" * 5000)
    page.click("#explain button")
    expect(told.locator(".error")).to_contain_text("the context of 256")


def test_a_paused_page_asks_for_nothing(page: Page) -> None:
    page.click("#pause")
    expect(page.locator("#status")).to_have_text("paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)  # more than two turns
    assert asked == []
    page.click("#pause")
    expect(page.locator("#status")).to_have_attribute("data-state", "live")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [1280, 720])
def test_both_schemes_are_legible_at_both_widths(page: Page, scheme: str, width: int, tmp_path: Path) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 900})
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is cut off at the side"
    texts = page.evaluate(TEXTS)
    assert len(texts) > 40
    poor = [text for text in texts if contrast(text["ink"], text["ground"]) < LEAST_TEXT_CONTRAST]
    assert poor == []
    assert min(text["pixels"] for text in texts) >= 13
    tell = colours_of(page)
    for ground in (
        "merged",
        "public",
        *(f"tenant-{hue}" for hue in range(8)),
        *(f"heat-{i}" for i in range(5)),
    ):
        assert contrast(tell("cell-ink"), tell(ground)) >= LEAST_TEXT_CONTRAST, ground
    for ink in ("ink", "quiet", "good", "warn", "bad"):
        assert contrast(tell(ink), tell("card")) >= LEAST_TEXT_CONTRAST, ink
        assert contrast(tell(ink), tell("ground")) >= LEAST_TEXT_CONTRAST, ink
    for shape in ("live", "kept", "shared", "line-hit", "focus"):
        assert contrast(tell(shape), tell("card")) >= LEAST_SHAPE_CONTRAST, shape


def test_everything_has_a_name(page: Page) -> None:
    assert page.evaluate(NAMELESS) == []
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    assert page.locator(".cell[tabindex='0']").count() == 1


def test_who_wants_less_motion_gets_none(page: Page) -> None:
    moves = "getComputedStyle(document.querySelector('.cell')).transitionDuration"
    assert page.evaluate(moves) != "0s"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moves) == "0s"


def test_a_worker_with_keys_asks_for_one(browser: Browser, model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    user, admin = new_key(keys, "acme", Role.USER), new_key(keys, "root", Role.ADMIN)
    with process_worker(
        model, "--http-address", "127.0.0.1:0", "--keys", str(keys), "--kv-blocks", "64"
    ) as worker:
        address = worker.wait_ready(timeout_seconds=READY_SECONDS)
        with Client(address, api_key=admin) as client:
            client.generate("of the admin's own, and nobody else's", max_tokens=1)
        with Client(address, api_key=user) as client:
            client.generate(HOUSE_RULES, max_tokens=1)
        page = browser.new_page()
        page.goto(f"http://{http_address(worker)}/ui/")
        dialog = page.locator("#key-dialog")
        expect(dialog).to_be_visible()
        assert page.locator(".cell").count() == 0
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-error")).to_contain_text("API key")
        page.fill("#key", user)
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text("live, as user of acme")
        expect(page.locator(".cell").first).to_contain_text("Be brief")
        assert "admin's own" not in page.content()
        expect(page.locator("#events-card")).to_be_hidden()
        expect(page.locator("#latency-card")).to_be_hidden()
        expect(page.locator("input[value=age]")).to_be_disabled()
        assert page.evaluate("Object.keys(localStorage).length") == 0
        page.reload()
        expect(page.locator("#status")).to_have_text("live, as user of acme")
        page.click("#forget-key")
        expect(dialog).to_be_visible()
        page.close()


def test_a_worker_that_ends_is_noticed(browser: Browser, model: Path) -> None:
    with process_worker(model, "--http-address", "127.0.0.1:0", "--kv-blocks", "64") as worker:
        worker.wait_ready(timeout_seconds=READY_SECONDS)
        page = browser.new_page()
        page.goto(f"http://{http_address(worker)}/ui/")
        expect(page.locator("#status")).to_have_attribute("data-state", "live")
        expect(page.locator("#icicle")).to_be_empty()
    expect(page.locator("#status")).to_have_text("the worker does not answer; asking again", timeout=15_000)
    page.close()


def new_key(path: Path, tenant: str, role: Role) -> str:
    """A key that the file has from now on."""
    key, stored = make_key(tenant=tenant, role=role, label="", created="2026-01-01T00:00:00+00:00")
    KeyFile(path).add(stored)
    return key
