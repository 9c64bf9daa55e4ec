"""A cache of one-token blocks that looks through everything whenever it has to choose a victim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

Prefix = tuple[int, ...]
"""A block, named by all tokens up to and including its own."""


@dataclass
class Run:
    """Blocks, each the parent of the next, that were always used together."""

    blocks: list[Prefix]
    serial: int
    created: int
    last_used: int
    is_output: bool
    priority: int
    priority_ends: float
    num_uses: int = 0
    queue: int = 0
    rank: float = 0
    lost: Prefix | None = None
    """What was evicted right behind it, if nothing has come there since."""


@dataclass
class Ghost:
    """Blocks that were evicted one right before the other, remembered under the first of them."""

    block: Prefix
    queue: int
    num_blocks: int


class NaivePolicy:
    """How runs are ranked; a run goes when it has the lowest rank of those that `may_go`."""

    def __init__(self, rank: Callable[[Run, NaiveCache], float], num_queues: int = 1) -> None:
        self.rank = rank
        self.num_queues = num_queues

    def queue_to_evict_from(self, cache: NaiveCache) -> int:
        """Of two, when a run of either could go."""
        raise NotImplementedError

    def used(self, run: Run, cache: NaiveCache) -> None:
        if self.num_queues == 2 and run.num_uses:
            run.queue = 1
        run.rank = self.rank(run, cache)

    def inserted(self, run: Run, num_new: int, ghost: Ghost | None, cache: NaiveCache) -> None:
        run.rank = self.rank(run, cache)


class NaiveSegmented(NaivePolicy):
    def __init__(self) -> None:
        super().__init__(lambda run, cache: run.last_used, 2)

    def queue_to_evict_from(self, cache: NaiveCache) -> int:
        return 1 if cache.num_blocks_in(1) > 0.8 * cache.num_blocks else 0


class NaiveArc(NaivePolicy):
    """The target is how many blocks may have been used once only."""

    def __init__(self) -> None:
        super().__init__(lambda run, cache: run.last_used, 2)
        self.target: float = 0

    def queue_to_evict_from(self, cache: NaiveCache) -> int:
        return 0 if cache.num_blocks_in(0) > self.target else 1

    def inserted(self, run: Run, num_new: int, ghost: Ghost | None, cache: NaiveCache) -> None:
        super().inserted(run, num_new, ghost, cache)
        if ghost is not None:
            num_same, num_other = cache.num_ghosts_in(ghost.queue), cache.num_ghosts_in(1 - ghost.queue)
            step = max(1.0, num_other / max(1, num_same)) * min(num_new, ghost.num_blocks)
            target = self.target + (step if ghost.queue == 0 else -step)
            self.target = min(max(target, 0), cache.num_blocks)
            run.queue = 1


def naive_policy(name: str) -> NaivePolicy:
    def cost(run: Run, cache: NaiveCache) -> float:
        return cache.age + (1 + len(run.blocks[-1]) / 8192) * (1 + run.num_uses)

    match name:
        case "lru":
            return NaivePolicy(lambda run, cache: run.last_used)
        case "fifo":
            return NaivePolicy(lambda run, cache: run.created)
        case "lfu":
            return NaivePolicy(lambda run, cache: run.num_uses * 10**9 + run.last_used)
        case "cost":
            return NaivePolicy(cost)
        case "slru":
            return NaiveSegmented()
        case "arc":
            return NaiveArc()
    raise ValueError(name)


@dataclass
class NaiveCache:
    """Serves one request after the other. All that is cached is in `runs`."""

    num_blocks: int
    max_ghosts: int
    policy: NaivePolicy
    now: float = 0
    tick: int = 0
    last_serial: int = 0
    age: float = 0
    """The highest rank of a victim so far."""
    runs: list[Run] = field(default_factory=list)
    ghosts: list[Ghost] = field(default_factory=list)
    """The oldest first."""

    def blocks(self) -> dict[Prefix, Run]:
        return {block: run for run in self.runs for block in run.blocks}

    def num_blocks_in(self, queue: int) -> int:
        return sum(len(run.blocks) for run in self.runs if run.queue == queue)

    def num_ghosts_in(self, queue: int) -> int:
        return sum(ghost.num_blocks for ghost in self.ghosts if ghost.queue == queue)

    def serve(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        *,
        num_published_first: int,
        priority: int,
        priority_seconds: float,
    ) -> int:
        """Publish a part of the prompt, the rest, and the output; return how many tokens were cached."""
        self.tick += 1
        priority_ends = inf if priority_seconds == inf else self.now + priority_seconds
        promise = (priority, priority_ends)
        hit = self._cached_prefixes(prompt[:-1])
        self.num_used = 0
        self._use(hit, promise)
        self.evict(len(self.blocks()) + len(prompt) - len(hit) - self.num_blocks, kept=hit)
        self._publish(prompt[:num_published_first], promise, is_output=False)
        self._publish(prompt, promise, is_output=False)
        kept = self._cached_prefixes(prompt)
        self.evict(len(self.blocks()) + len(output) - self.num_blocks, kept=kept)
        self._publish([*prompt, *output], promise, is_output=True)
        return len(hit)

    def evict(self, num_blocks: int, kept: Sequence[Prefix] = ()) -> None:
        """The coldest leaf loses its last blocks, until it is gone or enough are."""
        while num_blocks > 0 and (run := self._coldest(kept)) is not None:
            num_lost = min(num_blocks, len(run.blocks))
            lost = run.blocks[-num_lost]
            del run.blocks[-num_lost:]
            if not run.blocks:
                self.runs.remove(run)
            self.age = max(self.age, run.rank)
            self._remember(Ghost(lost, run.queue, num_lost), run.lost)
            self._set_lost_behind(lost[:-1], lost)
            num_blocks -= num_lost

    def reset(self) -> None:
        self.runs.clear()

    def _cached_prefixes(self, tokens: Sequence[int]) -> list[Prefix]:
        cached, prefixes = self.blocks(), [tuple(tokens[: i + 1]) for i in range(len(tokens))]
        num_cached = next((i for i, prefix in enumerate(prefixes) if prefix not in cached), len(prefixes))
        return prefixes[:num_cached]

    def _touch(self, path: list[Prefix]) -> list[Run]:
        """The path is used now; a run that goes on behind it is cut there. Returns its runs."""
        touched = []
        for run in list(self.runs):
            used = [block for block in run.blocks if block in path]
            if used:
                if len(used) < len(run.blocks):
                    self.last_serial += 1
                    self._set_lost_behind(used[0][:-1], None)
                    upper = replace(run, blocks=used, serial=self.last_serial, lost=None)
                    self.runs.append(upper)
                    del run.blocks[: len(used)]
                    run = upper
                run.last_used = self.tick
                touched.append(run)
        return touched

    def _use(self, path: list[Prefix], promise: tuple[int, float]) -> None:
        """The request uses the path: for the first time what is behind `num_used` and not its own."""
        for run in self._touch(path):
            if len(run.blocks[0]) > self.num_used and run.created != self.tick:
                run.num_uses += 1
                if run.priority_ends <= self.now or promise >= (run.priority, run.priority_ends):
                    run.priority, run.priority_ends = promise
            self.policy.used(run, self)
        self.num_used = max(self.num_used, len(path))

    def _publish(self, tokens: Sequence[int], promise: tuple[int, float], *, is_output: bool) -> None:
        path = self._cached_prefixes(tokens)
        self._use(path, promise)
        new = [tuple(tokens[:end]) for end in range(len(path) + 1, len(tokens) + 1)]
        if new:
            ghost = self._ghost(new[0])
            if ghost is not None:
                self.ghosts.remove(ghost)
            run = self._run_to_grow(new[0][:-1], is_output)
            if run is None:
                self.last_serial += 1
                run = Run([], self.last_serial, self.tick, self.tick, is_output, *promise)
                self.runs.append(run)
            run.blocks += new
            self._set_lost_behind(new[0][:-1], None)
            run.lost = None
            self.policy.inserted(run, len(new), ghost, self)

    def _run_to_grow(self, parent: Prefix, is_output: bool) -> Run | None:
        """The run that ends there, if the same request has just made it."""
        if any(block[:-1] == parent for block in self.blocks()):
            return None
        for run in self.runs:
            if run.blocks[-1] == parent and run.created == self.tick and run.is_output == is_output:
                return run
        return None

    def _ghost(self, block: Prefix | None) -> Ghost | None:
        return next((ghost for ghost in self.ghosts if ghost.block == block), None)

    def _remember(self, ghost: Ghost, behind: Prefix | None) -> None:
        last_part = self._ghost(behind)
        if last_part is not None:
            ghost.num_blocks += last_part.num_blocks
        self.ghosts = [other for other in self.ghosts if other.block not in (ghost.block, behind)]
        self.ghosts.append(ghost)
        del self.ghosts[: -self.max_ghosts]

    def _set_lost_behind(self, block: Prefix, lost: Prefix | None) -> None:
        """Of the run that ends with a block, note what was evicted behind it."""
        for run in self.runs:
            if run.blocks[-1] == block:
                run.lost = lost

    def _coldest(self, kept: Sequence[Prefix]) -> Run | None:
        parents = {block[:-1] for block in self.blocks()}
        leaves = [run for run in self.runs if run.blocks[-1] not in parents and run.blocks[-1] not in kept]
        for run in leaves:
            if run.priority_ends <= self.now:
                run.priority = 0
        if not leaves:
            return None
        lowest = min(run.priority for run in leaves)
        lowest_of_queue = [
            min((run.priority for run in leaves if run.queue == queue), default=None) for queue in (0, 1)
        ]
        queue = lowest_of_queue.index(lowest)
        if lowest_of_queue == [lowest, lowest]:
            queue = self.policy.queue_to_evict_from(self)
        candidates = [run for run in leaves if run.priority == lowest and run.queue == queue]
        return min(candidates, key=lambda run: (run.rank, not run.is_output, run.serial))
