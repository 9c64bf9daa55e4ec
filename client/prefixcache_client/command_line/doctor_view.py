"""What the doctor says, on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prefixcache_client.command_line.output import printable, seconds
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.report import Report
from prefixcache_client.doctor.verification import Verification

_TITLES = {
    1: "Is it the KV cache? Time per token against position",
    2: "How does the pool lie in memory?",
    3: "Are all indexes right?",
    4: "What is copied, and where does the time go?",
    5: "Do the settings fit?",
    6: "What bounds it?",
}
_MARKS = {
    Verdict.HEALTHY: ("healthy", "green"),
    Verdict.WARNING: ("warning", "bold yellow"),
    Verdict.FAULT: ("fault", "bold red"),
    Verdict.UNKNOWN: ("unknown", "dim"),
}


def report_view(report: Report) -> Group:
    """Step by step: verdict, sentence, and for what is wrong the figures, the advice and the page."""
    parts: list[RenderableType] = [Text(f"{printable(report.model)}, {_machine(report)}", style="bold")]
    for step, title in _TITLES.items():
        findings = [finding for finding in report.findings if finding.step == step]
        if findings:
            parts += ["", Text(f"Step {step}  {title}", style="bold")]
            parts += [_findings_table(findings)]
    parts += ["", _summary(report)]
    if not report.is_alone:
        parts.append(Text("Others used the worker meanwhile: times, usage and counts are theirs too."))
    return Group(*parts)


def verification_view(verification: Verification) -> Group:
    """The speeds as a table, then texts, settings and findings that differ."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("alone on the worker", no_wrap=True)
    for heading in ("before", "after", "times as fast"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for speed in verification.speeds:
        table.add_row(
            speed.name,
            _time_and_range(speed.before, speed.before_range),
            _time_and_range(speed.after, speed.after_range),
            f"{speed.times_as_fast:.2f}",
            "" if speed.is_apart else "not told apart",
        )
    lines = [
        f"{verification.num_texts - len(verification.other_texts)} of {verification.num_texts} fixed prompts "
        "are answered alike."
    ]
    for prompt, before, after in verification.other_texts:
        lines += [f"{prompt!r}", f"  before: {before!r}", f"  after:  {after!r}"]
    lines += [
        f"{name}: {before or 'nothing'} before, {after or 'nothing'} after"
        for name, before, after in verification.changes
    ]
    lines += [f"No longer found: {pitfall}." for pitfall in verification.gone]
    lines += [f"Found only now: {pitfall}." for pitfall in verification.new]
    return Group(table, Text(printable("\n".join(lines))))


def _machine(report: Report) -> str:
    facts = [report.machine.get(name, "") for name in ("cpu", "attention", "kv_dtype", "kv_layout")]
    return ", ".join(printable(fact) for fact in facts if fact)


def _findings_table(findings: list[Finding]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        word, style = _MARKS[finding.verdict]
        table.add_row(Text(word, style=style), Text(finding.name), _told(finding))
    return Padding(table, (0, 0, 0, 2))


def _told(finding: Finding) -> Text:
    """The sentence; the figures where something is wrong, and of step 6, whose figures are the branches."""
    lines = [printable(finding.sentence)]
    if finding.verdict in (Verdict.WARNING, Verdict.FAULT) or finding.step == 6:
        lines += [f"  {name}: {_figure(value)}" for name, value in finding.evidence.items()]
    if finding.advice:
        lines.append(f"-> {finding.advice}")
    if finding.pitfall is not None:
        lines.append(f"-> docs/pitfalls/{finding.pitfall}.md")
    return Text("\n".join(lines))


def _figure(value: str | int | float) -> str:
    match value:
        case str():
            return printable(value)
        case int():
            return f"{value:,}"
        case _:
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _summary(report: Report) -> Text:
    if report.is_healthy:
        undecided = sum(finding.verdict is Verdict.UNKNOWN for finding in report.findings)
        rest = f", {undecided} could not be decided" if undecided else ""
        return Text(f"Healthy: {len(report.findings)} checks, nothing wrong{rest}.", style="bold green")
    named = ", ".join(report.pitfalls) or "see above"
    return Text(f"Found: {named}.", style="bold red")


def _time_and_range(median: float, ends: tuple[float, float]) -> str:
    least, greatest = ends
    return seconds(median) if least == greatest else f"{_ms(median)} ({_ms(least)} to {_ms(greatest)}) ms"


def _ms(duration: float) -> str:
    return f"{1000 * duration:,.1f}"
