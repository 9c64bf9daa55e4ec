"""How much of a load each tenant makes, and when."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from prefixcache_client.errors import PrefixCacheClientError

_RATE_LIMIT = 1e15
"""Requests in a window: sums of more would not be exact."""

_SHIFT, _EXPONENT = 7.75, 4.1
"""A Zipf-Mandelbrot law: tenant k of 1, 2, ... makes a share in proportion to (k + shift) ** -exponent.

Fitted to two weeks of 43 tenants of one model ("m-small") that ServeGen published (alibaba/ServeGen, 2025):
of 43, the first makes 30 % of the requests, the first five 77 %, the first ten 92 %.
"""


@dataclass(frozen=True, slots=True)
class TenantRates:
    """Requests in equal windows of time, tenant by tenant, in any unit: only proportions count."""

    windows: tuple[tuple[float, ...], ...]
    """By window, then by tenant; those who ask most come first. At least one window and one request."""

    @classmethod
    def skewed(cls, num_tenants: int) -> TenantRates:
        """Rates that never change, with the skew of a real service."""
        return cls((tuple((rank + _SHIFT) ** -_EXPONENT for rank in range(1, num_tenants + 1)),))

    @classmethod
    def read(cls, folder: Path, num_tenants: int | None) -> TenantRates:
        """Those of a folder in ServeGen's form: one .csv file for each tenant, one line for each window, with
        its beginning in seconds and its rate first. All tenants, or those `num_tenants` who ask most.

        Raises PrefixCacheClientError for what has another form, or OSError.
        """
        paths = sorted(folder.glob("*.csv"))
        if not paths:
            raise PrefixCacheClientError(
                f"{folder} holds no .csv file: give a folder with one for each tenant"
            )
        tenants = [_rates(path) for path in paths]
        lengths = {len(rates) for rates in tenants}
        if len(lengths) > 1:
            raise PrefixCacheClientError(
                f"{folder}: tenants have from {min(lengths)} to {max(lengths)} windows; give all the same"
            )
        tenants.sort(key=sum, reverse=True)
        tenants = tenants[:num_tenants]
        if not any(map(sum, tenants)):
            raise PrefixCacheClientError(f"{folder}: all rates are 0")
        return cls(tuple(zip(*tenants, strict=True)))

    def part(self, first: int, num_windows: int | None) -> TenantRates:
        """Some of the windows, from `first` on. Raises PrefixCacheClientError when nobody asks in them."""
        part = self.windows[first : None if num_windows is None else first + num_windows]
        if not any(map(sum, part)):
            raise PrefixCacheClientError(
                f"nobody asks in the windows from {first} on: there are {len(self.windows)} windows"
            )
        return TenantRates(part)

    @property
    def num_tenants(self) -> int:
        return len(self.windows[0])


def _rates(path: Path) -> list[float]:
    """The second column. Raises PrefixCacheClientError for what is no rate."""
    rates = []
    # What is no UTF-8 is no number either, and is told with its line.
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, row in enumerate(_rows(file, path), 1):
            try:
                rate = float(row[1])
            except (IndexError, ValueError):
                rate = -1.0
            if not 0 <= rate < _RATE_LIMIT:
                raise PrefixCacheClientError(
                    f"{path}:{number}: the second column is the window's rate, a number of at least 0, "
                    f"not {row[1] if len(row) > 1 else 'missing'!r}"
                )
            rates.append(rate)
    return rates


def _rows(file: TextIO, path: Path) -> Iterator[list[str]]:
    """The lines of a table. Raises PrefixCacheClientError for one that none has been made of."""
    reader = csv.reader(file)
    try:
        yield from reader
    except csv.Error as error:
        raise PrefixCacheClientError(f"{path}:{reader.line_num}: no line of a table: {error}") from None
