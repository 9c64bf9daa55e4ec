"""The web page of a measurement, as text."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from support.measurements import answered, any_measurements, failed, measurement, server_stats

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.report.chart import Axis, Chart, Series, svg
from prefixcache_client.load.report.charts import report_charts
from prefixcache_client.load.report.html_page import html_page, write_html
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import summarize

VOID = {"meta", "path", "br"}


class WellFormed(HTMLParser):
    """Fails on a tag that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert all(name not in ("src", "href") and not name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(whole: Measurement, slo: Slo | None = None) -> str:
    return html_page(whole, summarize(whole, slo or Slo()))


def texts_of(page: str) -> list[str]:
    parser = WellFormed()
    parser.feed(page)
    assert parser.open == []
    return [text.strip() for text in parser.text if text.strip()]


def some_load(tenants: tuple[str, ...] = ("acme", "globex")) -> Measurement:
    return measurement(
        [
            answered(
                session=i,
                turn=i % 2,
                tenant=tenants[i % len(tenants)],
                planned=i / 10,
                first_token_seconds=0.05 + i % 7 / 50,
                gaps=(0.02,) * (i % 5),
                cached_tokens=i % 100,
            )
            for i in range(200)
        ]
        + [failed("RESOURCE_EXHAUSTED", planned=3.0)],
        stats_before=server_stats(observed={"queue": 1}),
        stats_after=server_stats(finished=200, prompt=20000, cached=900, observed={"queue": 201}),
    )


@given(any_measurements())
def test_any_measurement_makes_a_page_that_needs_nothing_else(whole: Measurement) -> None:
    page = page_of(whole, Slo(total_seconds=1.0))

    texts_of(page)
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<(td|th|h1|title|li|span)\b.*?</\1>", "", page))


def test_the_page_tells_the_figures_and_their_parts(tmp_path: Path) -> None:
    whole = some_load()
    write_html(whole, summarize(whole, Slo(first_token_seconds=0.1)), str(tmp_path / "page.html"))

    texts = texts_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    for text in (
        "chat on 127.0.0.1:50051",
        "First token p50",
        "Within the limits",
        "By tenant",
        "globex",
        "By turn",
        "RESOURCE_EXHAUSTED",
        "KV rows saved by sharing",
        "first token within 100 ms",
    ):
        assert text in texts


def test_names_are_shown_as_they_stand() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    whole = some_load(tenants=(hostile, "other"))

    assert hostile in texts_of(page_of(whole))


def test_a_load_without_answers_has_no_charts_but_what_it_knows() -> None:
    texts = texts_of(page_of(measurement([failed("UNAVAILABLE", planned=1.0)])))

    assert "UNAVAILABLE" in texts
    assert "No request was answered: there are no latencies and no throughput." in texts
    assert "First token" not in texts


def test_what_the_server_does_not_say_has_no_chart() -> None:
    titles = [chart.title for chart in report_charts(measurement([answered(planned=i) for i in range(20)]))]

    assert "Requests in flight" in titles
    assert "Cached share of the prompts" not in titles


def test_a_line_goes_through_its_points() -> None:
    drawn = svg(
        Chart(
            title="t",
            x=Axis(label="x", text=str, least=0.0, most=10.0),
            y=Axis(label="y", text=str, least=0.0, most=1.0),
            series=[Series("s", [(0.0, 0.0), (5.0, 0.5), (10.0, 1.0)])],
        )
    )

    (places,) = re.findall(r'class="line series-1" d="M([^"]*)"', drawn)
    (x0, y0), (x1, y1), (x2, y2) = (map(float, place.split()) for place in places.split("L"))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert x0 < x1 < x2
    assert y0 > y1 > y2  # SVG counts downwards


def test_a_gap_parts_a_line() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 1.0)]
    drawn = svg(
        Chart(
            title="t", x=Axis(label="x", text=str), y=Axis(label="y", text=str), series=[Series("s", points)]
        )
    )

    assert drawn.count('class="line series-1"') == 2


@pytest.mark.parametrize("value", [0.0, 1e-7, 1.0, 99.5, 1e9])
def test_an_axis_has_room_for_its_values_and_ticks_to_read_them(value: float) -> None:
    ticks: list[float] = []

    def text(tick: float) -> str:
        ticks.append(tick)
        return "tick"

    svg(
        Chart(
            title="t",
            x=Axis(label="x", text=str),
            y=Axis(label="y", text=text, least=0.0),
            series=[Series("s", [(0.0, value), (1.0, 0.0)])],
        )
    )

    assert 2 <= len(ticks) <= 9
    assert ticks[0] == 0.0
    assert value <= ticks[-1]


def test_a_logarithmic_axis_has_readable_ticks() -> None:
    ticks: list[float] = []

    def text(tick: float) -> str:
        ticks.append(tick)
        return "tick"

    points = [(0.004, 0.0), (0.9, 1.0)]
    svg(
        Chart(
            title="t",
            x=Axis(label="x", text=text, is_logarithmic=True),
            y=Axis(label="y", text=str),
            series=[Series("s", points)],
        )
    )

    assert ticks == pytest.approx([0.01, 0.03, 0.1, 0.3])


@pytest.mark.parametrize("is_logarithmic", [False, True])
@pytest.mark.parametrize("value", [1e-9, 1.0, 1e9])
def test_values_as_close_as_numbers_can_be_have_an_axis(value: float, is_logarithmic: bool) -> None:
    axis = Axis(label="", text=str, is_logarithmic=is_logarithmic)
    line = Series("line", [(value, 0.0), (math.nextafter(value, math.inf), 1.0)])
    chart = Chart(title="", x=axis, y=Axis(label="", text=str), series=[line])
    assert svg(chart).count("<path") > 1
