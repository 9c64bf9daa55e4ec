"""What an examination found out, and the JSON form of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.fixed_answers import FixedAnswers
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.read_json import read_json

FORMAT = "prefixcache doctor 1"


class ReportError(PrefixCacheClientError):
    """A file is no report of the doctor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One examination."""

    format: str = FORMAT
    model: str
    build: str
    settings: dict[str, str]
    """By flag without its dashes."""
    machine: dict[str, str]
    findings: list[Finding]
    """In the order of the steps."""
    answers: FixedAnswers
    is_alone: bool
    """False when others used the worker meanwhile: times, usage and counts are theirs too."""

    @property
    def is_healthy(self) -> bool:
        """Whether no finding accuses."""
        return not any(finding.verdict in (Verdict.WARNING, Verdict.FAULT) for finding in self.findings)

    @property
    def pitfalls(self) -> list[str]:
        """Those that findings name, the first named first."""
        return list(
            dict.fromkeys(finding.pitfall for finding in self.findings if finding.pitfall is not None)
        )


def load_report(path: str) -> Report:
    """The report that `--json` wrote. Raises ReportError, and OSError when the file cannot be read."""
    try:
        value = read_json(Path(path).read_bytes())
    except ValueError as error:
        raise ReportError(f"{path} is no report of prefixcache doctor: {error}") from None
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise ReportError(f"{path} is no report of prefixcache doctor; write one with --json FILE")
    try:
        return _report(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(f"{path} is a damaged report: {type(error).__name__} at {error}") from None


def _report(value: Mapping[str, Any]) -> Report:
    answers = value["answers"]
    return Report(
        model=str(value["model"]),
        build=str(value["build"]),
        settings={str(name): str(text) for name, text in value["settings"].items()},
        machine={str(name): str(text) for name, text in value["machine"].items()},
        findings=[
            Finding(**{**finding, "verdict": Verdict(finding["verdict"])}) for finding in value["findings"]
        ],
        answers=FixedAnswers(
            texts={str(prompt): str(text) for prompt, text in answers["texts"].items()},
            first_token_seconds=_positive(answers["first_token_seconds"]),
            token_seconds=_positive(answers["token_seconds"]),
        ),
        is_alone=bool(value["is_alone"]),
    )


def _positive(values: list[Any]) -> list[float]:
    """Requires: at least one."""
    numbers = [float(value) for value in values]
    if not numbers or min(numbers) <= 0:
        raise ValueError("times that are not above 0")
    return numbers
