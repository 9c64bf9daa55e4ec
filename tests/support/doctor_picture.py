"""The picture of the doctor's report: a worker with a planted fault, examined, as a terminal shows it."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line.doctor_view import report_view
from prefixcache_client.doctor.report import Report, load_report

CHROMIUM = "/usr/bin/chromium"
COLUMNS = 118
FAULT = "extra-row"


def doctor_report(path: Path) -> None:
    """Examine a worker with the default model that reads one row too many, and draw the report as a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/report.json"
        command_line.main(["doctor", "--json", report, "--worker", "--plant-fault", FAULT])
        draw_report(load_report(report), path)


def draw_report(report: Report, path: Path) -> None:
    """The report as a PNG."""
    screen = Console(
        record=True, width=COLUMNS, file=io.StringIO(), markup=False, highlight=False, emoji=False
    )
    screen.print(report_view(report))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content(screen.export_svg(title="prefixcache doctor"))
        page.locator("svg").first.screenshot(path=path)
        browser.close()
