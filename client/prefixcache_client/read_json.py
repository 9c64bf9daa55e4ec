"""JSON that somebody else wrote."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """The value. Raises ValueError for what is no JSON, nested too deep, or no UTF-8. O(text)."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
