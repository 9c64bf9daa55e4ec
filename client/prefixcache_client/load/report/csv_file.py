"""The requests of a measurement as a table for other programs."""

from __future__ import annotations

import csv

from prefixcache_client.load.measurement import Measurement

_COLUMNS = (
    "session",
    "turn",
    "tenant",
    "planned",
    "sent",
    "first_token",
    "ended",
    "late_seconds",
    "first_token_seconds",
    "seconds_per_token",
    "total_seconds",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "error",
)


def write_csv(measurement: Measurement, path: str) -> None:
    """One line for each request, in the order of sending; fields and properties of `RequestResult`, and empty
    where they are None. Raises OSError."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows([getattr(result, column) for column in _COLUMNS] for result in measurement.results)
