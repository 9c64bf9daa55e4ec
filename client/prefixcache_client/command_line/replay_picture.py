"""The picture of a replay: hit ratio against the size of the cache."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from prefixcache import POLICIES
from prefixcache.replay import OPTIMUM
from prefixcache_client.command_line.output import printable
from prefixcache_client.command_line.pictures import COLOURS
from prefixcache_client.command_line.replay_result import ReplayResult, subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "*os^vDPX"
_STYLES = dict(zip(POLICIES, zip(cycle(COLOURS), cycle(_MARKERS), strict=False), strict=False))

_PANELS_PER_ROW = 3
_PANEL_INCHES = (3.6, 3.0)
_SINGLE_PANEL_INCHES = (6.4, 4.2)
_LEGEND_INCHES = 1.5
_LONGEST_NAME = 40
_NEAREST_TICKS = 1.35
"""Ratio of two sizes whose labels still find room beside each other."""


def draw_picture(result: ReplayResult, path: str) -> None:
    """Draw a line for each policy, in one panel for all tenants and one for each; PNG or SVG by the name.

    Requires: matplotlib, and at least one row. Raises OSError.
    """
    from matplotlib.figure import Figure

    groups = result.groups()
    num_rows = -(-len(groups) // _PANELS_PER_ROW)
    num_columns = -(-len(groups) // num_rows)
    width, height = _SINGLE_PANEL_INCHES if len(groups) == 1 else _PANEL_INCHES
    figure = Figure((num_columns * width + _LEGEND_INCHES, num_rows * height + 0.4), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    for index, panel in enumerate(panels.flat):
        if index < len(groups):
            _draw_panel(panel, result, groups[index])
        else:
            panel.remove()
    figure.suptitle(_plain(subject(result)), fontsize=10)
    figure.supxlabel(f"size of the cache (blocks of {result.block_size:,} tokens, log scale)", fontsize=9)
    figure.supylabel(f"hits (% of all prompt {result.id_unit}s)", fontsize=9)
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)


def _draw_panel(panel: Axes, result: ReplayResult, tenant: str | None) -> None:
    sizes = result.capacities()
    for index, policy in enumerate(result.policies(tenant)):
        ratios = [100 * result.row(policy, num_blocks, tenant).hit_ratio for num_blocks in sizes]
        if policy == OPTIMUM:
            panel.plot(sizes, ratios, color="#777777", linestyle="--", label=policy)
        else:
            colour, marker = _STYLES[policy]
            panel.plot(
                *(sizes, ratios),
                color=colour,
                marker=marker,
                markersize=5,
                linewidth=1.4,
                label=policy,
                zorder=3 - index / 100,  # the first policy is drawn over the others
            )
    panel.set_xscale("log")
    panel.set_xticks(_ticks(sizes), [f"{size:,}" for size in _ticks(sizes)], fontsize=8)
    panel.set_xticks([], minor=True)
    panel.tick_params(axis="y", labelsize=8)
    panel.tick_params(labelbottom=True)
    panel.set_ylim(bottom=0)
    panel.grid(color="#e0e0e0", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    if len(result.groups()) > 1:
        panel.set_title("all tenants" if tenant is None else _plain(tenant[:_LONGEST_NAME]), fontsize=9)


def _ticks(sizes: list[int]) -> list[int]:
    """The sizes that are labelled: all, unless some are too near to each other."""
    ticks = sizes[:1]
    for size in sizes[1:]:
        if size >= ticks[-1] * _NEAREST_TICKS:
            ticks.append(size)
    return ticks


def _plain(text: str) -> str:
    """A text of others that is drawn as it stands: a dollar sign would begin a formula."""
    return printable(text).replace("$", r"\$")
