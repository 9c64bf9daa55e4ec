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

    @property
    def num_missing(self) -> int:
        """Blocks that others would have to give up."""
        return self.num_needed - self.num_free - self.num_idle


class DoubleFreeError(PrefixCacheError):
    """A block was released more often than it was retained."""


class HandleReleasedError(PrefixCacheError):
    """The handle was released before; it holds nothing any more."""


class ForeignHandleError(PrefixCacheError):
    """The handle belongs to another cache."""


class PendingCopiesError(PrefixCacheError):
    """The handle's copies have not been executed, so its rows are not what they should be yet."""


class PendingMovesError(PrefixCacheError):
    """Copies between pool and tiers have not been executed, so not every row is where it should be yet."""


class NotPublisherError(PrefixCacheError):
    """The namespace may not write public nodes."""


class UnknownTenantError(PrefixCacheError, KeyError):
    """No request and no quota has named this tenant yet."""

    def __init__(self, tenant: str, *, num_tenants: int) -> None:
        super().__init__(
            f"tenant {tenant!r} is none of the {num_tenants} known; acquire or set a quota first"
        )
        self.tenant = tenant

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would put it in quotes


class QuotaExceededError(PrefixCacheError):
    """The tenant would hold more blocks than its ceiling, even if its idle ones were evicted."""

    def __init__(
        self, *, tenant: str, num_needed: int, ceiling_blocks: int, num_held: int, num_idle: int
    ) -> None:
        super().__init__(
            f"tenant {tenant!r} needs {num_needed} blocks, but holds {num_held} of at most "
            f"{ceiling_blocks}, of which {num_idle} can be evicted; release a handle or raise the ceiling"
        )
        self.tenant = tenant
        self.num_needed = num_needed
        self.ceiling_blocks = ceiling_blocks
        self.num_held = num_held
        self.num_idle = num_idle

    @property
    def num_missing(self) -> int:
        """Blocks that the tenant's own sequences would have to give up."""
        return self.num_held + self.num_needed - self.ceiling_blocks - self.num_idle


class NotCachedError(PrefixCacheError):
    """The prefix is not in the cache as a whole."""


class PinLimitError(PrefixCacheError):
    """More of the pool would be pinned than is allowed."""


class PinExpiredError(PrefixCacheError):
    """The pin has ended: it expired, was taken away, or the cache was reset."""


class EventGapError(PrefixCacheError):
    """Events are missing between those a subscriber has and those at hand."""

    def __init__(self, *, wanted: int, oldest: int, next_sequence_number: int) -> None:
        at_hand = f"{oldest} to {next_sequence_number - 1}"
        if oldest == next_sequence_number:
            at_hand = f"none before {next_sequence_number}"
        super().__init__(
            f"event {wanted} comes next, but at hand are {at_hand}; take the whole state and go on from there"
        )
        self.wanted = wanted
        self.oldest = oldest
        self.next_sequence_number = next_sequence_number


class EventConflictError(PrefixCacheError):
    """An event does not fit what the events before it have said."""


class SnapshotDamagedError(PrefixCacheError):
    """A file is no snapshot, or not as it was written."""

    def __init__(self, section: str, *, expected: object, found: object) -> None:
        super().__init__(
            f"the snapshot is damaged in its {section}: expected {expected}, found {found}; "
            "take another one, or start without"
        )
        self.section = section
        self.expected = expected
        self.found = found


class SnapshotMismatchError(PrefixCacheError):
    """The snapshot is of a cache whose blocks mean something else."""

    def __init__(self, field: str, *, in_file: object, in_cache: object) -> None:
        super().__init__(
            f"the snapshot's {field} is {in_file!r}, the cache's is {in_cache!r}; "
            "restore it into a cache like the one that saved it, or start without it"
        )
        self.field = field
        self.in_file = in_file
        self.in_cache = in_cache
