"""The report page of a load, as a browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support.measurements import answered, failed, measurement, server_stats

from prefixcache_client.load.report.html_page import write_html
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import summarize

CONTRAST = """
() => {
  const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!colour.endsWith(', 0)')) return colour;
    }
  };
  return [...document.querySelectorAll('h1,h2,p,dt,dd,li,th,td,figcaption,summary,caption,.bars span')]
    .filter(element => element.textContent.trim())
    .map(element => {
      const both = [getComputedStyle(element).color, behind(element)].map(luminance);
      return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    });
}
"""
"""The contrast of each text with what is behind it, as WCAG 2 defines it."""

LONG_NAME = "a tenant with a long name that has words, and one that is longer: " + "x" * 60


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = measurement(
        [
            answered(
                session=i,
                turn=i % 3,
                tenant=("acme", LONG_NAME)[i % 2],
                planned=i / 20,
                first_token_seconds=0.05 + i % 11 / 40,
                gaps=(0.02,) * (i % 9),
                cached_tokens=i % 100,
            )
            for i in range(300)
        ]
        + [failed("RESOURCE_EXHAUSTED", planned=3.0)],
        stats_before=server_stats(observed={"queue": 1}),
        stats_after=server_stats(finished=310, prompt=20000, cached=900, observed={"queue": 201}),
    )
    path = tmp_path_factory.mktemp("report") / "page.html"
    write_html(whole, summarize(whole, Slo(first_token_seconds=0.2)), str(path))
    return path


@pytest.fixture(params=[("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)])
def page(request: pytest.FixtureRequest, browser: Browser, page_path: Path) -> Iterator[Page]:
    """The page, opened in one way; whatever it complains of or asks for fails the test."""
    scheme, width = request.param
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if "page.html" not in asked.url else None)
    page.goto(page_path.as_uri())
    yield page
    page.close()
    assert complaints == []


def test_nothing_sticks_out_and_every_text_is_legible(page: Page) -> None:
    width = page.viewport_size["width"] if page.viewport_size else 0

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert min(page.evaluate(CONTRAST)) >= 4.5


def test_charts_have_names_and_their_numbers_open_by_keyboard(page: Page) -> None:
    assert page.get_by_role("img", name="Latency").count() == 0
    assert page.get_by_role("img", name="Requests in flight: on average, by seconds since").count() == 1
    first = page.locator("details").first
    assert not first.locator("table").first.is_visible()

    first.locator("summary").focus()
    page.keyboard.press("Enter")

    assert first.locator("table").first.is_visible()


def test_lines_take_the_colours_of_the_scheme(page: Page) -> None:
    is_dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")

    stroke = page.locator("path.line.series-1").first.evaluate("path => getComputedStyle(path).stroke")

    assert stroke == ("rgb(108, 178, 255)" if is_dark else "rgb(11, 99, 197)")
