"""Measurements as files that programs read, and that are compared later."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.report.from_json import JsonError, from_json
from prefixcache_client.load.report.summary import Summary
from prefixcache_client.read_json import read_json

FORMAT = "prefixcache-measurement"
VERSION = 1


class MeasurementFileError(PrefixCacheClientError):
    """A file holds no measurement that this version reads."""


def write_measurement(measurement: Measurement, summary: Summary, path: str) -> None:
    """Write both to a file, or to standard output for "-"; each request on a line of its own. Raises OSError.

    The measurement is complete: `read_measurement` gives it back. The summary is for readers that do not want
    to compute it.
    """
    if path == "-":
        _write(measurement, summary, sys.stdout)
        return
    with open(path, "w", encoding="utf-8") as file:
        _write(measurement, summary, file)


def read_measurement(path: str) -> Measurement:
    """The measurement in a file that `write_measurement` wrote. Raises MeasurementFileError, OSError."""
    try:
        content = read_json(Path(path).read_bytes())
    except ValueError as error:  # no UTF-8, or no JSON
        raise MeasurementFileError(f"{path} is no report of `prefixcache bench`: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise MeasurementFileError(
            f"{path} is no report of `prefixcache bench`: it does not say that its format is {FORMAT}"
        )
    if content.get("version") != VERSION:
        raise MeasurementFileError(
            f"{path} is a report of version {content.get('version')}, and only version {VERSION} can be read:"
            " measure anew"
        )
    try:
        return from_json(Measurement, content.get("measurement"), "measurement")
    except JsonError as error:
        raise MeasurementFileError(f"{path} is a damaged report: {error}") from None


def _write(measurement: Measurement, summary: Summary, file: TextIO) -> None:
    plain = asdict(measurement)
    results = ",\n".join(map(_text, plain.pop("results")))
    head = _text({"format": FORMAT, "version": VERSION, "summary": asdict(summary)}).removesuffix("}")
    file.write(f'{head},\n"measurement": {_text(plain).removesuffix("}")}, "results": [\n{results}\n]}}}}\n')


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
