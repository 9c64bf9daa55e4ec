"""Families of the page, made of plain numbers. All names begin with `prefixcache_`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from prefixcache import HistogramCounts

PREFIX = "prefixcache_"
Labels = tuple[str, ...]


def gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_text, value=value)


def gauges(
    name: str, help_text: str, labels: Sequence[str], value_by_labels: Mapping[Labels, float]
) -> Metric:
    """One value for each tuple of labels' values; none is a family without samples."""
    return _filled(GaugeMetricFamily(PREFIX + name, help_text, labels=labels), value_by_labels)


def counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_text, value=value)


def counters(
    name: str, help_text: str, labels: Sequence[str], value_by_labels: Mapping[Labels, float]
) -> Metric:
    """As `gauges`."""
    return _filled(CounterMetricFamily(PREFIX + name, help_text, labels=labels), value_by_labels)


def info(name: str, help_text: str, values: dict[str, str]) -> Metric:
    return InfoMetricFamily(PREFIX + name, help_text, value=values)


def histogram(name: str, help_text: str, counts: HistogramCounts) -> Metric:
    return histograms(name, help_text, (), {(): counts})


def histograms(
    name: str, help_text: str, labels: Sequence[str], counts_by_labels: Mapping[Labels, HistogramCounts]
) -> Metric:
    """As `gauges`."""
    family = HistogramMetricFamily(PREFIX + name, help_text, labels=labels)
    for values, counts in counts_by_labels.items():
        family.add_metric(values, bucket_list(counts), counts.sum)
    return family


def bucket_list(counts: HistogramCounts) -> list[tuple[str, float]]:
    """Buckets as Prometheus counts them: everything up to a bound."""
    buckets = [(f"{bound:g}", float(count)) for bound, count in counts.cumulative()]
    return [*buckets, ("+Inf", float(counts.total))]


def exposition(families: Iterable[Metric]) -> bytes:
    """The families in Prometheus's text format. O(samples)."""
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return generate_latest(registry)


class _Collected:
    """Families as the library wants to be given them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, value_by_labels: Mapping[Labels, float]
) -> Metric:
    for values, value in value_by_labels.items():
        family.add_metric(values, value)
    return family
