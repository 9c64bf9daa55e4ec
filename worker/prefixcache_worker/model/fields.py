"""Named values of a model file, read with the errors a user can act on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from prefixcache_worker.errors import ConfigError


class Fields:
    """A mapping whose missing and impossible values are ConfigErrors that name the file."""

    def __init__(self, values: Mapping[str, Any], source: str, *, prefix: str = "") -> None:
        """`source` names the file; `prefix` stands before every key."""
        self.source = source
        self._values = values
        self._prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is; `default` if the key is missing, None if its value is null."""
        return self._values.get(self._prefix + key, default)

    def require(self, key: str) -> Any:
        """The value as it is. Raises ConfigError if it is missing or null."""
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self._name(key)} is missing; the file is incomplete, fetch it again.")
        return value

    def count(self, key: str, default: int | None = None, *, at_least: int = 1) -> int:
        """A whole number. Missing or null: `default`, and an error where that is None."""
        kind = f"a whole number of at least {at_least}"
        return int(self._checked(key, default, kind, lambda value: value >= at_least and value % 1 == 0))

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0. Missing or null: `default`, and an error where that is None."""
        return float(self._checked(key, default, "a number above 0", lambda value: 0 < value < math.inf))

    def _checked(self, key: str, default: float | None, kind: str, accepts: Callable[[float], bool]) -> float:
        if default is not None and self.get(key) is None:
            return default
        value = self.require(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and accepts(value):
            return value
        raise ConfigError(f"{self._name(key)} is {value!r}, not {kind}; fetch the file again.")

    def _name(self, key: str) -> str:
        return f"{self.source}: {self._prefix}{key}"


def unique_ids(values: list[Any]) -> tuple[int, ...]:
    """Flatten ids, lists of ids and None, keeping the order."""
    ids: dict[int, None] = {}
    for value in values:
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None:
                ids[int(token_id)] = None
    return tuple(ids)
