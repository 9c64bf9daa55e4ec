"""Numbers that are not the same for every request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

_SIGMAS = 3
"""A lognormal amount is cut off so many standard deviations from its median."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A fixed number, or one that is drawn anew each time.

    As text: `64`; `32..128`, uniform; or `64~0.5`, lognormal: the median, and the standard deviation of the
    logarithm. What lies more than three of those from the median is drawn to that bound.
    """

    least: float
    most: float
    sigma: float = 0.0
    """Of the logarithm; 0: uniform, or fixed when `least` is `most`."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most < math.inf or not 0 <= self.sigma < math.inf:
            raise ValueError(f"an amount goes from at least 0 upwards, not from {self.least} to {self.most}")

    @classmethod
    def fixed(cls, value: float) -> Amount:
        return cls(value, value)

    @classmethod
    def uniform(cls, least: float, most: float) -> Amount:
        return cls(least, most)

    @classmethod
    def lognormal(cls, median: float, sigma: float) -> Amount:
        return cls(median * math.exp(-_SIGMAS * sigma), median * math.exp(_SIGMAS * sigma), sigma)

    @classmethod
    def parse(cls, text: str) -> Amount:
        """Raises ValueError for what is no amount."""
        try:
            if "~" in text:
                median, sigma = text.split("~")
                return cls.lognormal(float(median), float(sigma))
            if ".." in text:
                least, most = text.split("..")
                return cls.uniform(float(least), float(most))
            return cls.fixed(float(text))
        except (ValueError, OverflowError):
            raise ValueError(
                f"must be a number such as 64, a range such as 32..128, or MEDIAN~SIGMA such as 64~0.5, "
                f"got {text!r}"
            ) from None

    def __str__(self) -> str:
        if self.sigma:
            return f"{self._median:g}~{self.sigma:g}"
        return f"{self.least:g}" if self.least == self.most else f"{self.least:g}..{self.most:g}"

    def draw(self, rng: Random) -> float:
        """The next number."""
        if not self.sigma:
            return rng.uniform(self.least, self.most)
        drawn = self._median * math.exp(rng.gauss(0.0, self.sigma))
        return min(max(drawn, self.least), self.most)

    def draw_count(self, rng: Random) -> int:
        """The next number, rounded, at least 1."""
        return max(1, round(self.draw(rng)))

    def is_at_least(self, bound: float) -> bool:
        """Whether all that it draws is; of a lognormal amount, the half of it: what is less is rare."""
        return (self._median if self.sigma else self.least) >= bound

    @property
    def _median(self) -> float:
        """Of a lognormal amount, whose bounds are at equal ratios from it."""
        return math.sqrt(self.least * self.most)

    @property
    def most_count(self) -> int:
        """The greatest that `draw_count` gives."""
        return max(1, round(self.most))
