"""What the commands that draw a picture have in common."""

from __future__ import annotations

import argparse
import importlib.util

from prefixcache_client.command_line import arguments as common
from prefixcache_client.errors import PrefixCacheClientError

COLOURS = ("#d55e00", "#000000", "#56b4e9", "#009e73", "#e69f00", "#0072b2", "#cc79a7", "#8c8c00")
"""Colour-blind readers can tell them apart too."""


class PictureError(PrefixCacheClientError):
    """A picture cannot be drawn here."""


def require_matplotlib() -> None:
    """Raise PictureError, which says what to install, unless it is there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PictureError("a picture needs matplotlib: install it with pip install 'prefixcache[plot]'")


def picture_path(value: str) -> str:
    """A file for a picture: PNG or SVG by its name."""
    if not value.endswith((".png", ".svg")):
        raise argparse.ArgumentTypeError(f"must end with .png or .svg, got {value!r}")
    return common.file_path(value)
