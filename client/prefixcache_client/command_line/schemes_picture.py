"""The picture of a comparison of schemes: what a request takes, how many fit, how fast they are."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prefixcache_client.command_line.output import size
from prefixcache_client.command_line.pictures import COLOURS
from prefixcache_client.command_line.schemes_result import (
    BatchResult,
    SchemeResult,
    SchemesResult,
    conditions,
    subject,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURE_INCHES = (10.5, 7.0)
_MARKERS = "os^vDPX*"


def draw_picture(result: SchemesResult, path: str) -> None:
    """Bars for memory and how many fit, lines for speed against the batch; PNG or SVG by the name.

    Requires: matplotlib. Raises OSError.
    """
    from matplotlib.figure import Figure

    figure = Figure(_FIGURE_INCHES, layout="constrained")
    (memory, fit), (throughput, first_token) = figure.subplots(2, 2)
    largest = max(result.batches)
    _draw_bars(
        memory,
        result,
        [scheme.at(largest).kv_bytes_per_request / 2**20 for scheme in result.schemes],
        lambda scheme: (
            f"{size(scheme.at(largest).kv_bytes_per_request)}\n"
            f"{100 * scheme.at(largest).wasted_share:.0f} % wasted"
        ),
    )
    memory.set_title(f"KV of one request, of {largest} sent at once (MiB)", fontsize=10)
    _draw_bars(fit, result, [scheme.num_fit for scheme in result.schemes], lambda s: f"{s.num_fit:,}")
    fit.set_title("requests that fit the memory at the same time", fontsize=10)
    _draw_lines(throughput, result, lambda batch: batch.tokens_per_second)
    throughput.set_title("output tokens per second, prompts computed meanwhile", fontsize=10)
    _draw_lines(first_token, result, lambda batch: batch.first_token_seconds)
    first_token.set_title("first token, median of the requests (s)", fontsize=10)
    figure.legend(*throughput.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    title = f"{subject(result)}\n{conditions(result)}"
    figure.suptitle(title.replace("$", r"\$"), fontsize=11)
    figure.savefig(path, dpi=150)


def _draw_bars(
    panel: Axes,
    result: SchemesResult,
    heights: Sequence[float],
    text: Callable[[SchemeResult], str],
) -> None:
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(heights))]
    bars = panel.bar(range(len(heights)), heights, color=colours, width=0.65)
    panel.bar_label(bars, [text(scheme) for scheme in result.schemes], fontsize=8, padding=2)
    labels = [result.label(scheme) for scheme in result.schemes]
    panel.set_xticks(range(len(heights)), labels, fontsize=8)
    panel.margins(y=0.25)
    _tidy(panel)


def _draw_lines(
    panel: Axes, result: SchemesResult, figures: Callable[[BatchResult], Sequence[float]]
) -> None:
    """The medians, and a whisker from the lowest to the highest round."""
    for i, scheme in enumerate(result.schemes):
        values = [figures(batch) for batch in scheme.batches]
        medians = [statistics.median(rounds) for rounds in values]
        whiskers = [
            [median - min(rounds) for median, rounds in zip(medians, values, strict=True)],
            [max(rounds) - median for median, rounds in zip(medians, values, strict=True)],
        ]
        panel.errorbar(
            result.batches,
            medians,
            yerr=whiskers,
            color=COLOURS[i % len(COLOURS)],
            marker=_MARKERS[i % len(_MARKERS)],
            markersize=5,
            linewidth=1.4,
            capsize=3,
            label=result.label(scheme),
        )
    panel.set_xscale("log", base=2)
    panel.set_xticks(result.batches, [str(batch) for batch in result.batches])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("requests at once (log scale)", fontsize=9)
    panel.set_ylim(bottom=0)
    _tidy(panel)


def _tidy(panel: Axes) -> None:
    panel.tick_params(labelsize=8)
    panel.grid(axis="y", color="#e0e0e0", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
