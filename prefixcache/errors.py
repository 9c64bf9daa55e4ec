"""Every error a caller of the cache can meet. The message names the numbers and what to do."""

from __future__ import annotations


class PrefixCacheError(Exception):
    """Base of all errors below. Whoever raises one has changed nothing."""


class InvalidArgumentError(PrefixCacheError, ValueError):
    """An argument is out of its bounds."""


class OutOfBlocksError(PrefixCacheError):
    """Fewer blocks can be had than are needed, even if every idle block were evicted."""

    def __init__(self, *, num_needed: int, num_free: int, num_idle: int) -> None:
        super().__init__(
            f"need {num_needed} blocks, but only {num_free} are free and {num_idle} can be evicted; "
            "release a handle or make the pool larger"
        )
        self.num_needed = num_needed
        self.num_free = num_free
        self.num_idle = num_idle


class DoubleFreeError(PrefixCacheError):
    """A block was released more often than it was retained."""


class HandleReleasedError(PrefixCacheError):
    """The handle was released before; it holds nothing any more."""


class ForeignHandleError(PrefixCacheError):
    """The handle belongs to another cache."""


class PendingCopiesError(PrefixCacheError):
    """The handle's copies have not been executed, so its rows are not what they should be yet."""
